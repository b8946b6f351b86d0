"""`SandboxClient`: the same calls for code without an event loop, or with one that is busy (notebooks)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from k8e.client.aio import AsyncSandboxClient
from k8e.client.discovery import Target
from k8e.client.sync.faces import Blocking, Iterating, Making
from k8e.client.sync.loop import LoopThread
from k8e.client.sync.session import Forward, PortConnection, Process, Session

__all__ = ["SandboxClient", "sandbox_session"]


class SandboxClient:
    """A connection to a sandbox server, found by itself or named by `endpoint` (host:port).

    `api_key` says who calls, `profile` names a server of `profiles.yaml`, `owner` is for administrators who speak for
    somebody else. A `target` is instead of all of these. Without a `tenant_id` it is `K8E_SANDBOX_TENANT`'s.

    One client may be used by many threads at once. A forked child may go on using it, with a connection and a session
    of its own.
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
        self.calls = AsyncSandboxClient(
            endpoint, tenant_id, api_key=api_key, profile=profile, owner=owner, target=target
        )
        self.loop = LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        loop: LoopThread | None = getattr(self, "loop", None)
        if loop is not None and loop.is_open():
            warnings.warn(f"unclosed {self!r}: use `with` or close() it", ResourceWarning, source=self, stacklevel=2)
            loop.abandon()

    def close(self) -> None:
        """Destroy the client's own session, unless it has a tenant, and close the connection; once is enough."""
        if self.loop.is_open():
            try:
                self.loop.wait(self.calls.close())
            finally:
                self.loop.close()

    def session(self, session_id: str) -> Session:
        """A session that exists, as an object."""
        return Session(self.calls.session(session_id), self.loop)

    create = Making(AsyncSandboxClient.create, Session)

    run = Blocking(AsyncSandboxClient.run)
    run_output = Iterating(AsyncSandboxClient.run_output)
    run_background = Blocking(AsyncSandboxClient.run_background)

    exec = Blocking(AsyncSandboxClient.exec)
    exec_stream = Iterating(AsyncSandboxClient.exec_stream)
    exec_output = Iterating(AsyncSandboxClient.exec_output)
    attach_exec = Iterating(AsyncSandboxClient.attach_exec)
    execs = Blocking(AsyncSandboxClient.execs)
    follow_exec = Iterating(AsyncSandboxClient.follow_exec)
    send_input = Blocking(AsyncSandboxClient.send_input)
    signal_exec = Blocking(AsyncSandboxClient.signal_exec)
    start_process = Making(AsyncSandboxClient.start_process, Process)
    open_port = Making(AsyncSandboxClient.open_port, PortConnection)
    forward = Making(AsyncSandboxClient.forward, Forward)
    start_run = Blocking(AsyncSandboxClient.start_run)
    poll_run = Blocking(AsyncSandboxClient.poll_run)
    attach_run = Iterating(AsyncSandboxClient.attach_run)
    kill_run = Blocking(AsyncSandboxClient.kill_run)
    runs = Blocking(AsyncSandboxClient.runs)

    create_session = Blocking(AsyncSandboxClient.create_session)
    pull_image = Blocking(AsyncSandboxClient.pull_image)
    destroy_session = Blocking(AsyncSandboxClient.destroy_session)
    get = Blocking(AsyncSandboxClient.get)
    sessions = Blocking(AsyncSandboxClient.sessions)
    extend = Blocking(AsyncSandboxClient.extend)
    update_labels = Blocking(AsyncSandboxClient.update_labels)
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
    upload = Blocking(AsyncSandboxClient.upload)
    download = Blocking(AsyncSandboxClient.download)

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

    confirm = Blocking(AsyncSandboxClient.confirm)
    confirmed = Blocking(AsyncSandboxClient.confirmed)
    approve = Blocking(AsyncSandboxClient.approve)
    approvals = Blocking(AsyncSandboxClient.approvals)

    login = Blocking(AsyncSandboxClient.login)
    whoami = Blocking(AsyncSandboxClient.whoami)
    create_api_key = Blocking(AsyncSandboxClient.create_api_key)
    api_keys = Blocking(AsyncSandboxClient.api_keys)
    delete_api_key = Blocking(AsyncSandboxClient.delete_api_key)


@contextmanager
def sandbox_session(
    runtime_class: str = "", allowed_hosts: Sequence[str] | None = None, endpoint: str | None = None
) -> Iterator[tuple[SandboxClient, str]]:
    """A client and a fresh session that is destroyed at the end."""
    with SandboxClient(endpoint) as client, client.create(runtime_class, allowed_hosts) as session:
        yield client, session.session_id
