"""`SandboxClient`: the same calls for code without an event loop.

Nothing is written twice: each method is the async one, run on a loop in a thread of the client's own, so it also
works where a loop is already running (notebooks).
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from k8e.client.aio import AsyncSandboxClient
from k8e.client.discovery import Target

__all__ = ["SandboxClient", "sandbox_session"]

P = ParamSpec("P")
R = TypeVar("R")


class LoopThread:
    """One event loop in one daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="k8e client", daemon=True)
        self._thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run to the end; an interrupt here cancels it there."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def is_open(self) -> bool:
        return not self._loop.is_closed()

    def close(self) -> None:
        if self.is_open():
            self.wait(self._loop.shutdown_asyncgens())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Blocking(Generic[P, R]):
    """An async method as one that waits."""

    def __init__(self, method: Callable[Concatenate[AsyncSandboxClient, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        functools.update_wrapper(cast("Any", self), method)

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: SandboxClient, owner: type) -> Callable[P, R]: ...
    def __get__(self, client: SandboxClient | None, owner: type) -> Self | Callable[P, R]:
        if client is None:
            return self
        method = self._method

        @functools.wraps(method)
        def waiting(*args: P.args, **kwargs: P.kwargs) -> R:
            return client.loop.wait(method(client.calls, *args, **kwargs))

        return waiting


class Iterating(Generic[P, R]):
    """An async iteration as a plain one; leaving the loop early ends the call."""

    def __init__(self, method: Callable[Concatenate[AsyncSandboxClient, P], AsyncIterator[R]]) -> None:
        self._method = method
        functools.update_wrapper(cast("Any", self), method)

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: SandboxClient, owner: type) -> Callable[P, Iterator[R]]: ...
    def __get__(self, client: SandboxClient | None, owner: type) -> Self | Callable[P, Iterator[R]]:
        if client is None:
            return self
        method = self._method

        @functools.wraps(method)
        def iterating(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
            return drained(client.loop, cast("AsyncGenerator[R, None]", method(client.calls, *args, **kwargs)))

        return iterating


def drained(loop: LoopThread, items: AsyncGenerator[R, None]) -> Iterator[R]:
    async def following() -> R:
        return await anext(items)

    try:
        while True:
            try:
                item = loop.wait(following())
            except StopAsyncIteration:
                return
            yield item
    finally:
        # Closing the client ends its streams; one that was left half read then has nothing more to end.
        if loop.is_open():
            loop.wait(items.aclose())


class SandboxClient:
    """A connection to a sandbox server, found by itself or named by `endpoint` (host:port)."""

    def __init__(self, endpoint: str | None = None, tenant_id: str = "", *, target: Target | None = None) -> None:
        self.calls = AsyncSandboxClient(endpoint, tenant_id, target=target)
        self.loop = LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Destroy the client's own session, unless it has a tenant, and close the connection."""
        try:
            self.loop.wait(self.calls.close())
        finally:
            self.loop.close()

    run = Blocking(AsyncSandboxClient.run)
    run_output = Iterating(AsyncSandboxClient.run_output)
    run_background = Blocking(AsyncSandboxClient.run_background)

    exec = Blocking(AsyncSandboxClient.exec)
    exec_stream = Iterating(AsyncSandboxClient.exec_stream)
    exec_output = Iterating(AsyncSandboxClient.exec_output)
    attach_exec = Iterating(AsyncSandboxClient.attach_exec)
    start_run = Blocking(AsyncSandboxClient.start_run)
    poll_run = Blocking(AsyncSandboxClient.poll_run)
    attach_run = Iterating(AsyncSandboxClient.attach_run)
    kill_run = Blocking(AsyncSandboxClient.kill_run)
    runs = Blocking(AsyncSandboxClient.runs)

    create_session = Blocking(AsyncSandboxClient.create_session)
    destroy_session = Blocking(AsyncSandboxClient.destroy_session)
    get = Blocking(AsyncSandboxClient.get)
    sessions = Blocking(AsyncSandboxClient.sessions)
    extend = Blocking(AsyncSandboxClient.extend)
    subagent = Blocking(AsyncSandboxClient.subagent)
    processes = Blocking(AsyncSandboxClient.processes)
    events = Blocking(AsyncSandboxClient.events)
    workspaces = Blocking(AsyncSandboxClient.workspaces)
    delete_workspace = Blocking(AsyncSandboxClient.delete_workspace)
    server_status = Blocking(AsyncSandboxClient.server_status)
    stop_server = Blocking(AsyncSandboxClient.stop_server)

    write_file = Blocking(AsyncSandboxClient.write_file)
    read_file = Blocking(AsyncSandboxClient.read_file)
    read_bytes = Blocking(AsyncSandboxClient.read_bytes)
    read_chunks = Iterating(AsyncSandboxClient.read_chunks)
    list_files = Blocking(AsyncSandboxClient.list_files)
    list_directory = Blocking(AsyncSandboxClient.list_directory)
    stat = Blocking(AsyncSandboxClient.stat)
    make_directory = Blocking(AsyncSandboxClient.make_directory)
    move = Blocking(AsyncSandboxClient.move)
    remove = Blocking(AsyncSandboxClient.remove)
    watch = Iterating(AsyncSandboxClient.watch)

    create_terminal = Blocking(AsyncSandboxClient.create_terminal)
    terminal_output = Iterating(AsyncSandboxClient.terminal_output)
    terminal_write = Blocking(AsyncSandboxClient.terminal_write)
    terminal_resize = Blocking(AsyncSandboxClient.terminal_resize)
    terminal_destroy = Blocking(AsyncSandboxClient.terminal_destroy)

    update_allowed_hosts = Blocking(AsyncSandboxClient.update_allowed_hosts)
    egress = Iterating(AsyncSandboxClient.egress)
    pip_install = Blocking(AsyncSandboxClient.pip_install)

    set_secret = Blocking(AsyncSandboxClient.set_secret)
    secrets = Blocking(AsyncSandboxClient.secrets)
    delete_secret = Blocking(AsyncSandboxClient.delete_secret)


@contextmanager
def sandbox_session(
    runtime_class: str = "", allowed_hosts: Sequence[str] = (), endpoint: str | None = None
) -> Iterator[tuple[SandboxClient, str]]:
    """A client and a fresh session that is destroyed at the end."""
    with SandboxClient(endpoint) as client:
        session_id = client.create_session(runtime_class, allowed_hosts)
        try:
            yield client, session_id
        finally:
            client.destroy_session(session_id)
