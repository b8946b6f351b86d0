"""One channel to one server: made at first use, errors rebuilt, nothing else."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from grpc import aio

from k8e._proto.stub import SandboxStub
from k8e.client.discovery import Target
from k8e.client.errors import SandboxError, Unreachable, rebuilt

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["MARGIN_S", "QUICK_S", "Transport", "deadline"]

MESSAGE_BYTES = 64 * 1024 * 1024
MARGIN_S = 15.0
"""What a call may take beyond the command's own time."""
QUICK_S = 60.0
"""For calls that only look or change something small."""

ERROR_KEY = "k8e-error"
RETRY_KEY = "k8e-retry-after-s"

Q = TypeVar("Q", bound="Message")
R = TypeVar("R", bound="Message")


def deadline(timeout_s: float) -> float | None:
    """How long to wait for a command that may take `timeout_s`; without a limit for one without."""
    return timeout_s + MARGIN_S if timeout_s > 0 else None


class Transport:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._channel: aio.Channel | None = None
        self._made_stub: SandboxStub | None = None
        self._pid = 0

    @property
    def _stub(self) -> SandboxStub:
        # A channel lives in the loop and the process that made it; a forked child needs its own.
        if self._made_stub is None or self._pid != os.getpid():
            self._channel = open_channel(self._target)
            self._made_stub = SandboxStub(self._channel)
            self._pid = os.getpid()
        return self._made_stub

    async def aclose(self) -> None:
        """Close the connection; calls that still run are cancelled."""
        channel, self._channel, self._made_stub = self._channel, None, None
        if channel is not None:
            await channel.close()

    async def _call(self, method: aio.UnaryUnaryMultiCallable[Q, R], request: Q, *, timeout_s: float | None) -> R:
        try:
            return await method(request, timeout=timeout_s)
        except aio.AioRpcError as error:
            raise self._rebuilt(error) from error

    async def _each(self, call: aio.UnaryStreamCall[Q, R] | aio.StreamStreamCall[Q, R]) -> AsyncIterator[R]:
        """The messages of a stream; leaving the loop early cancels the call, and with it the command."""
        try:
            async for message in call:
                yield message
        except aio.AioRpcError as error:
            raise self._rebuilt(error) from error
        finally:
            call.cancel()

    def _rebuilt(self, error: aio.AioRpcError) -> SandboxError:
        trailing = {key: value for key, value in error.trailing_metadata() or () if isinstance(value, str)}
        retry = trailing.get(RETRY_KEY)
        made = rebuilt(
            error.code().name, trailing.get(ERROR_KEY, ""), error.details() or "", float(retry) if retry else None
        )
        return Unreachable(self._unreachable(str(made))) if type(made) is Unreachable else made

    def _unreachable(self, detail: str) -> str:
        return (
            f"no answer from {self._target.endpoint} (from {self._target.found}; trusting {self._target.trust}): "
            f"{detail}. Start a server with `k8e server`, or set K8E_SANDBOX_ENDPOINT."
        )


def open_channel(target: Target) -> aio.Channel:
    credentials = grpc.ssl_channel_credentials(target.roots, target.key, target.certificate)
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        # A server that was restarted is found again quickly.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if target.is_loopback():
        # A proxy named in the environment is for the network, never for this machine.
        options.append(("grpc.enable_http_proxy", 0))
    return aio.secure_channel(target.endpoint, credentials, options=options)
