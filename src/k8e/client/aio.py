"""`AsyncSandboxClient`: the SDK, written once.

The client's own session is made at the first `run`, used by the next ones, and destroyed at close unless the client
has a tenant.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from k8e._proto import sandbox_pb2 as pb
from k8e.client.approvals import ApprovalCalls
from k8e.client.discovery import Target, default_tenant, discover
from k8e.client.errors import NotFound, SandboxError, SandboxLost
from k8e.client.execs import exec_result, raw
from k8e.client.identities import IdentityCalls
from k8e.client.logins import LoginCalls
from k8e.client.network import NetworkCalls
from k8e.client.ports import PortCalls
from k8e.client.processes import ProcessCalls
from k8e.client.runs import RunCalls
from k8e.client.secrets import SecretCalls
from k8e.client.session import AsyncSession
from k8e.client.sessions import SessionCalls
from k8e.client.terminals import TerminalCalls
from k8e.client.transfers import TransferCalls
from k8e.client.values import BrokeredSecret, Chunk, ExecResult, Exit, Gates, Limits, SecretRef

__all__ = ["AsyncSandboxClient"]

T = TypeVar("T")


class AsyncSandboxClient(
    SessionCalls,
    TransferCalls,
    ProcessCalls,
    RunCalls,
    TerminalCalls,
    PortCalls,
    NetworkCalls,
    SecretCalls,
    ApprovalCalls,
    IdentityCalls,
    LoginCalls,
):
    """A connection to a sandbox server, found by itself or named by `endpoint` (host:port).

    `api_key` says who calls, `profile` names a server of `profiles.yaml`, `owner` is for administrators who speak for
    somebody else. A `target` is instead of all of these. Without a `tenant_id` it is `K8E_SANDBOX_TENANT`'s.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        tenant_id: str = "",
        *,
        api_key: str | None = None,
        profile: str | None = None,
        owner: str = "",
        target: Target | None = None,
    ) -> None:
        super().__init__(target or discover(endpoint, api_key=api_key, profile=profile, owner=owner))
        self._tenant_id = tenant_id or ("" if target else default_tenant())
        self._own = ""
        self._making = asyncio.Lock()

    def _forked(self) -> None:
        super()._forked()
        # The session of the parent's is the parent's to use and to destroy.
        self._own = ""
        self._making = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_channel", None) is not None and self._pid == os.getpid():
            warnings.warn(
                f"unclosed {self!r}: use `async with` or close() it", ResourceWarning, stacklevel=2, source=self
            )

    async def close(self) -> None:
        """Destroy the client's own session, unless it has a tenant, and close the connection; once is enough."""
        if self._pid != os.getpid():
            self._forked()
        own, self._own = self._own, ""
        try:
            if own and not self._tenant_id:
                with contextlib.suppress(SandboxError):
                    await self.destroy_session(own)
        finally:
            await self.aclose()

    def session(self, session_id: str) -> AsyncSession:
        """A session that exists, as an object."""
        return AsyncSession(self, session_id)

    async def create(
        self,
        runtime_class: str = "",
        allowed_hosts: Sequence[str] | None = None,
        tenant_id: str = "",
        *,
        session_id: str = "",
        env: Mapping[str, str] | None = None,
        image: str = "",
        user: str = "",
        limits: Limits | None = None,
        secret_refs: Sequence[SecretRef] = (),
        brokered_secrets: Sequence[BrokeredSecret] = (),
        network: str = "",
        gates: Gates | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> AsyncSession:
        """Create a session, as an object: with `async with` it is destroyed at the end."""
        return self.session(
            await self.create_session(
                runtime_class,
                allowed_hosts,
                tenant_id,
                session_id=session_id,
                env=env,
                image=image,
                user=user,
                limits=limits,
                secret_refs=secret_refs,
                brokered_secrets=brokered_secrets,
                network=network,
                gates=gates,
                labels=labels,
            )
        )

    async def run(
        self,
        code: str | bytes,
        language: str = "bash",
        timeout: float = 30,
        *,
        session_id: str = "",
        workdir: str = "",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program's text, byte for byte, in the given session or the client's own."""
        request = run_request(code, language, timeout, workdir=workdir, env=env)

        async def work(chosen: str, recreated: bool) -> ExecResult:
            request.session_id = chosen
            return exec_result(await self._run_once(request, timeout), recreated=recreated)

        return await self._in_session(session_id, work)

    async def run_output(
        self,
        code: str | bytes,
        language: str = "bash",
        timeout: float = 30,
        *,
        session_id: str = "",
        workdir: str = "",
        env: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Chunk | Exit]:
        """Like `run`, with the output as it comes and one `Exit` at the end."""
        request = run_request(code, language, timeout, workdir=workdir, env=env)

        async def work(chosen: str, recreated: bool) -> tuple[Chunk | Exit, AsyncIterator[Chunk | Exit], bool]:
            request.session_id = chosen
            items = self._attached(request, None, timeout)
            return await anext(items), items, recreated

        first, rest, recreated = await self._in_session(session_id, work)
        yield marked(first, recreated=recreated)
        async for item in rest:
            yield marked(item, recreated=recreated)

    async def run_background(
        self,
        code: str | bytes,
        language: str = "bash",
        timeout: float = 0,
        *,
        session_id: str = "",
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
    ) -> str:
        """Start a program in the background and return its run's id.

        With `stdin` its input stays open until `send_input` by that id says `eof`; else it reads end-of-file.
        """
        request = run_request(code, language, timeout, workdir=workdir, env=env)

        async def work(chosen: str, recreated: bool) -> str:
            request.session_id = chosen
            return await self._started(request, stdin=stdin)

        return await self._in_session(session_id, work)

    async def _in_session(self, named: str, work: Callable[[str, bool], Awaitable[T]]) -> T:
        """Do the work in the named session, or in the client's own, which is made again once if it is gone."""
        if named:
            return await work(named, False)
        own = await self._own_session()
        try:
            return await work(own, False)
        except (NotFound, SandboxLost):
            # Only a session that is gone answers so, and then nothing has run: making another is safe.
            return await work(await self._own_session(gone=own), True)

    async def _own_session(self, *, gone: str = "") -> str:
        if self._pid != os.getpid():
            self._forked()
        async with self._making:
            if not self._own or self._own == gone:
                self._own = await self._found_by_tenant(gone) or await self.create_session(tenant_id=self._tenant_id)
            return self._own

    async def _found_by_tenant(self, gone: str) -> str:
        if not self._tenant_id:
            return ""
        mine = (each for each in await self.sessions() if each.tenant_id == self._tenant_id)
        return next((each.session_id for each in mine if each.session_id != gone and not each.parent_session_id), "")


def marked(item: Chunk | Exit, *, recreated: bool) -> Chunk | Exit:
    return dataclasses.replace(item, session_recreated=True) if recreated and isinstance(item, Exit) else item


def run_request(
    code: str | bytes, language: str, timeout: float, *, workdir: str, env: Mapping[str, str] | None
) -> pb.ExecRequest:
    request = pb.ExecRequest(code=raw(code), language=language, timeout_s=timeout, workdir_bytes=raw(workdir))
    for key, value in (env or {}).items():
        request.env[key] = raw(value)
    return request
