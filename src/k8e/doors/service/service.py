"""The service: every RPC of the descriptor has its method here, whatever protocol carries it.

A door brings a call and a request; it gets an answer, or an error of ours and never a stack.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import MethodDescriptor

from k8e import full_disk
from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service.approvals import ApprovalRpcs
from k8e.doors.service.call import Call
from k8e.doors.service.encoding import FairWorker
from k8e.doors.service.errors import single
from k8e.doors.service.execs import ExecRpcs
from k8e.doors.service.files import FileRpcs
from k8e.doors.service.identity import IdentityRpcs
from k8e.doors.service.mcp import McpRpcs
from k8e.doors.service.network import NetworkRpcs
from k8e.doors.service.ports import PortRpcs
from k8e.doors.service.presence import IN_PERSON, Presence
from k8e.doors.service.runs import RunRpcs
from k8e.doors.service.secrets import SecretRpcs
from k8e.doors.service.server import ServerFacts, ServerRpcs
from k8e.doors.service.sessions import SessionRpcs
from k8e.doors.service.terminals import TerminalRpcs
from k8e.engine.engine import Engine
from k8e.errors import HostUnsupported, K8eError, SandboxFailed, SandboxLost, StoreFailed
from k8e.model import SessionSpec

__all__ = ["SERVICE", "Service"]

_log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["SandboxService"]

Method = Callable[[Call, Any], Awaitable[Any]]


class Service:
    """All RPCs over one engine; an RPC that no room serves is refused with a clear text."""

    def __init__(
        self,
        engine: Engine,
        *,
        defaults: SessionSpec,
        facts: ServerFacts,
        identity: IdentityRpcs,
        presence: Presence = IN_PERSON,
        mcp: McpRpcs | None = None,
    ) -> None:
        self.worker = FairWorker()
        """Where large answers are made."""
        self._directory = Path(facts.data_dir)
        rooms = (
            SessionRpcs(engine, defaults),
            ExecRpcs(engine, self.worker),
            RunRpcs(engine, self.worker),
            FileRpcs(engine, self.worker),
            TerminalRpcs(engine),
            PortRpcs(engine),
            SecretRpcs(engine),
            NetworkRpcs(engine),
            identity,
            ApprovalRpcs(engine, presence),
            ServerRpcs(engine, facts),
            mcp,
        )
        self._methods = {method.name: _method(rooms, method) for method in SERVICE.methods}

    async def answer(self, name: str, call: Call, request: Any) -> Any:
        """Serve one call; `request` is a message, or an iterator of them where the caller streams.

        Raises: K8eError.
        """
        try:
            return await self._methods[name](call, request)
        except Exception as error:
            raise _known(name, single(error), self._directory) from error


def _method(rooms: tuple[object, ...], method: MethodDescriptor) -> Method:
    found = next((found for room in rooms if (found := getattr(room, method.name, None))), None)
    return found or _unserved(method.name)


def _unserved(name: str) -> Method:
    async def refuse(call: Call, request: object) -> None:
        raise HostUnsupported(f"{name} is not served by this server yet")

    return refuse


def _known(name: str, error: BaseException, directory: Path) -> K8eError:
    """Errors of ours as they are, but for a full disk, wherever it was met; a bug is logged once, here, and its text
    stays with us."""
    if not isinstance(error, K8eError) or _is_failure(error):
        full = full_disk.explained(error, directory)
        if full is not None:
            return full
    if isinstance(error, K8eError):
        return error
    if not isinstance(error, Exception):
        raise error
    _log.error("call failed unexpectedly", exc_info=error, extra={"rpc": name})
    return SandboxFailed("internal error", type(error).__name__)


def _is_failure(error: BaseException) -> bool:
    """Whether it is the server that could not do it."""
    return isinstance(error, SandboxFailed | StoreFailed) and not isinstance(error, SandboxLost)
