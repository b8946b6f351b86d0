"""`kill -9` of the server and of the egress daemon, in turn, while a session of a real server uses its network."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k8e.client import SandboxClient
from k8e.client.values import Chunk, Exit
from k8e.egress import netns
from k8e.egress.layout import Home
from k8e.model import Runtime
from k8e.setup.provision import Provisioned
from tests.support.engines import RUNTIMES
from tests.support.servers import NO_POOL, Server
from tests.support.upstreams import CLOSED, OPEN, Upstream

_DOWNLOAD = 8082
_BLOCK = 64 * 1024
_PATIENCE_S = 60.0
_TRY_S = 40.0
"""For the answer of a server far away; a refusal comes at once."""

_TRY = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as c:
        c.sendall(b"hello")
        print("yes" if c.recv(5) == b"hello" else "no")
except OSError as error:
    print("no", error)
"""
_FETCH = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as c:
    total = 0
    while data := c.recv(1 << 16):
        assert not data.strip(b"x"), "damaged"
        total += len(data)
print(total)
"""


class Download:
    """Sends a block whenever it is told to, so that what passed when is known."""

    def __init__(self) -> None:
        self._tickets = threading.Semaphore(0)
        self._is_over = False
        self.sent = 0

    def converse(self, connection: socket.socket) -> None:
        while True:
            self._tickets.acquire()
            if self._is_over:
                return
            connection.sendall(b"x" * _BLOCK)
            self.sent += _BLOCK
            # Nothing may wait in a buffer: sent means that it went through.
            while _unsent(connection):
                time.sleep(0.001)

    def more(self, blocks: int) -> None:
        """Returns when they have gone through."""
        wanted = self.sent + blocks * _BLOCK
        self._tickets.release(blocks)
        _until(lambda: self.sent >= wanted)

    def end(self) -> None:
        self._is_over = True
        self._tickets.release()


def _unsent(connection: socket.socket) -> bool:
    return bool(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4))[0])


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _client(server: Server) -> SandboxClient:
    return SandboxClient(target=server.target())


def _session(client: SandboxClient, far: Upstream, runtime: Runtime) -> str:
    hosts = [f"{far.address}/32:{OPEN}", f"{far.address}/32:{_DOWNLOAD}"]
    sid = client.create_session(runtime_class=runtime, allowed_hosts=hosts)
    for name, text in (("try.py", _TRY), ("fetch.py", _FETCH)):
        client.write_file(sid, f"/workspace/{name}", text)
    return sid


def _reaches(client: SandboxClient, sid: str, far: Upstream, port: int, timeout_s: float = _TRY_S) -> bool:
    answer = client.exec(sid, f"python3 try.py {far.address} {port} {timeout_s}", timeout=_PATIENCE_S)
    assert answer.stdout[:2] in ("ye", "no"), answer
    return answer.stdout == "yes\n"


def _daemon(server: Server) -> int:
    """Its pid, by its command line."""
    wanted = str(server.data_dir).encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"k8e.egress" in words and wanted in words:
            return int(entry.parent.name)
    return 0


def _kill_daemon(server: Server) -> int:
    pid = _daemon(server)
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([descriptor], [], [], _PATIENCE_S)[0]
    os.close(descriptor)
    return pid


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runtime", RUNTIMES, ids=str)
def test_a_download_does_not_notice_the_servers_death(mortal: Server, far: Upstream, runtime: Runtime) -> None:
    download = Download()
    far.listen(_DOWNLOAD, download.converse)
    with _client(mortal) as client:
        sid = _session(client, far, runtime)
        run = client.start_run(sid, f"python3 fetch.py {far.address} {_DOWNLOAD}")
        download.more(20)
    daemon = _daemon(mortal)
    mortal.kill()
    download.more(20)
    mortal.start()
    download.more(20)
    assert _daemon(mortal) == daemon
    download.end()
    with _client(mortal) as client:
        said, end = b"", None
        for item in client.attach_run(run):
            if isinstance(item, Chunk):
                said += item.data
            else:
                end = item
        assert isinstance(end, Exit)
        assert (said, end.exit_code) == (b"%d\n" % (60 * _BLOCK), 0)
        assert _reaches(client, sid, far, OPEN)
        assert not _reaches(client, sid, far, CLOSED)
    assert far.accepted[CLOSED] == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runtime", RUNTIMES, ids=str)
def test_a_daemon_that_dies_under_the_server_comes_back_with_every_policy(
    mortal: Server, far: Upstream, runtime: Runtime
) -> None:
    with _client(mortal) as client:
        sid = _session(client, far, runtime)
        assert _reaches(client, sid, far, OPEN)
        before = _kill_daemon(mortal)
        _until(lambda: _reaches(client, sid, far, OPEN))
        assert _daemon(mortal) not in (0, before)
        assert not _reaches(client, sid, far, CLOSED)
        client.update_allowed_hosts(sid, [f"{far.address}/32:{CLOSED}"])
        assert _reaches(client, sid, far, CLOSED), "the control: it can be reached where that is allowed"
        assert not _reaches(client, sid, far, OPEN)
    assert far.accepted[CLOSED] == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runtime", RUNTIMES, ids=str)
def test_with_both_dead_nothing_passes_and_a_start_brings_back_what_was(
    mortal: Server, far: Upstream, runtime: Runtime
) -> None:
    with _client(mortal) as client:
        sid = _session(client, far, runtime)
        assert _reaches(client, sid, far, OPEN)
        loop = (
            f"until [ -e /workspace/stop ]; do python3 try.py {far.address} {OPEN} 0.5; "
            f"python3 try.py {far.address} {CLOSED} 0.5; done"
        )
        client.start_run(sid, loop)
        _until(lambda: far.accepted[OPEN] > 2)
    mortal.kill()
    _kill_daemon(mortal)
    # What the daemon dialled before it died may still wait to be accepted; whoever comes after it is accepted after it.
    with socket.create_connection((far.address, OPEN), timeout=_PATIENCE_S) as last:
        last.sendall(b"hello")
        assert last.recv(5) == b"hello"
    taken = far.accepted[OPEN]
    time.sleep(1.0)  # the loop goes on knocking; there is nothing to wait for but time
    assert far.accepted[OPEN] == taken
    mortal.start()
    _until(lambda: far.accepted[OPEN] > taken)
    with _client(mortal) as client:
        client.write_file(sid, "/workspace/stop", "")
    assert far.accepted[CLOSED] == 0


def test_a_stop_keeps_the_network_of_sessions_and_destroying_takes_it_away(
    data_dir: Path, host: Provisioned, far: Upstream
) -> None:
    server, home = Server(data_dir, "--pool-min", "1"), Home.of(data_dir)
    server.start()
    with _client(server) as client:
        sid = _session(client, far, Runtime.CONTAINER)
    assert server.stop() == 0
    daemon = _daemon(server)
    assert daemon
    assert netns.is_held(home.router)
    server.start()
    with _client(server) as client:
        assert _reaches(client, sid, far, OPEN)
    assert _daemon(server) == daemon
    server.destroy()
    assert not home.router.exists()
    assert home.attached() == frozenset()
    assert not _daemon(server)


def test_a_server_without_sessions_takes_its_daemon_along(data_dir: Path, host: Provisioned) -> None:
    server = Server(data_dir, *NO_POOL)
    server.start()
    assert _daemon(server), "the control: it was there"
    assert server.stop() == 0
    assert not _daemon(server)
    assert not Home.of(data_dir).router.exists()


def test_what_died_while_nobody_looked_loses_its_network_at_the_next_start(mortal: Server, far: Upstream) -> None:
    with _client(mortal) as client:
        sid = _session(client, far, Runtime.CONTAINER)
        kept = _session(client, far, Runtime.CONTAINER)
        assert _reaches(client, kept, far, OPEN)
        home, dead, alive = Home.of(mortal.data_dir), _of(client, sid), _of(client, kept)
    assert {dead, alive} <= home.attached()
    mortal.kill()
    os.kill(int((mortal.data_dir / "sandboxes" / dead / "pid").read_text()), signal.SIGKILL)
    mortal.start()
    with _client(mortal) as client:
        assert _reaches(client, kept, far, OPEN)
    # A process that was killed a moment ago may seem alive to the new server for another moment.
    _until(lambda: dead not in home.attached())
    assert alive in home.attached()


def _of(client: SandboxClient, sid: str) -> str:
    """The sandbox of a session, by the control group in which the host keeps what runs there."""
    client.start_run(sid, f"sleep 1000; : {sid}")
    found: set[str] = set()

    def is_found() -> bool:
        found.update(_groups_of(f"; : {sid}".encode()))
        return bool(found)

    _until(is_found)
    (sandbox,) = found
    return sandbox


def _groups_of(words: bytes) -> Iterator[str]:
    """Of every process on the host that has these words in its command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words in (entry / "cmdline").read_bytes():
                yield from re.findall(r"/k8e/([^/\n]+)", (entry / "cgroup").read_text())
