"""Two real servers with a data directory each on this host: what becomes of one is nothing to the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from k8e.client import SandboxClient
from k8e.client.values import Chunk, Exit
from k8e.egress.layout import Home
from k8e.setup.provision import Provisioned
from k8e.substrate.local import record
from k8e.substrate.local.blocks import CLAIMS, WINDOW
from k8e.substrate.local.host import cgroup
from k8e.substrate.local.host.process import Process, identify, is_alive
from k8e.substrate.local.layout import Layout
from k8e.substrate.local.record import Record
from tests.support.servers import NO_POOL, Server
from tests.support.upstreams import CLOSED, OPEN, Upstream

_PATIENCE_S = 60.0
_TRY = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=40) as c:
        c.sendall(b"hello")
        print("yes" if c.recv(5) == b"hello" else "no")
except OSError as error:
    print("no", error)
"""


@dataclass(frozen=True, slots=True)
class _Held:
    """What a server has on the host beside its own process."""

    records: frozenset[Record]
    """With each sandbox's init and its block of ids."""
    alive: frozenset[str]
    groups: frozenset[str]
    windows: frozenset[int]
    """Of ids, that the data directory has claimed on this host."""
    networks: frozenset[str]
    daemons: frozenset[Process]

    @classmethod
    def by(cls, server: Server) -> _Held:
        data_dir = server.data_dir.resolve()
        records = frozenset(record.load_all(Layout(data_dir)))
        return cls(
            records=records,
            alive=frozenset(each.sandbox for each in records if each.init is not None and is_alive(each.init)),
            groups=frozenset(cgroup.leftover_groups(cgroup.hierarchies(), str(data_dir))),
            windows=frozenset(
                int(path.name) for path in CLAIMS.iterdir() if path.is_symlink() and path.readlink() == data_dir
            ),
            networks=frozenset(Home.of(data_dir).attached()),
            daemons=frozenset(_daemons(data_dir)),
        )


def _daemons(data_dir: Path) -> Iterator[Process]:
    """By their command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"k8e.egress" in words and str(data_dir).encode() in words:
                yield identify(int(entry.name))
        except OSError:
            continue


@contextmanager
def _serving(data_dir: Path) -> Iterator[Server]:
    """Everything of it is destroyed at the end of the block."""
    data_dir.mkdir(mode=0o711)
    server = Server(data_dir, *NO_POOL)
    server.start()
    try:
        yield server
    finally:
        server.destroy()


@dataclass(frozen=True, slots=True)
class _Work:
    """A session with a file, a command that runs until it is told to end, and one place that it may reach."""

    server: Server
    far: Upstream
    session_id: str
    run_id: str

    @classmethod
    def begun(cls, server: Server, far: Upstream) -> _Work:
        with _client(server) as client:
            sid = client.create_session(runtime_class="container", allowed_hosts=[f"{far.address}/32:{OPEN}"])
            client.write_file(sid, "/workspace/try.py", _TRY)
            client.write_file(sid, "/workspace/owner", str(server.data_dir))
            run = client.start_run(sid, "echo begun; until [ -e go ]; do sleep 0.05; done; echo went")
            return cls(server, far, sid, run)

    def check(self) -> None:
        """All of it is as it was made."""
        with _client(self.server) as client:
            assert client.poll_run(self.run_id).status == "running"
            assert client.exec(self.session_id, "cat owner").stdout == str(self.server.data_dir)
            assert self._reaches(client, OPEN)
            assert not self._reaches(client, CLOSED)

    def _reaches(self, client: SandboxClient, port: int) -> bool:
        answer = client.exec(self.session_id, f"python3 try.py {self.far.address} {port}", timeout=_PATIENCE_S)
        assert answer.stdout[:2] in ("ye", "no"), answer
        return answer.stdout == "yes\n"

    def finish(self) -> bytes:
        """What the command has said, from its beginning."""
        with _client(self.server) as client:
            client.write_file(self.session_id, "/workspace/go", "")
            *output, end = client.attach_run(self.run_id)
        assert isinstance(end, Exit)
        assert (end.exit_code, end.status) == (0, "completed")
        return b"".join(item.data for item in output if isinstance(item, Chunk))


def _client(server: Server) -> SandboxClient:
    return SandboxClient(target=server.target())


@pytest.mark.timeout(300)
def test_a_servers_death_start_and_end_leave_another_servers_sessions_alone(
    data_dir: Path, host: Provisioned, far: Upstream
) -> None:
    with _serving(data_dir / "stays") as stays:
        with _serving(data_dir / "goes") as goes:
            work, others = _Work.begun(stays, far), _Work.begun(goes, far)
            held, theirs = _Held.by(stays), _Held.by(goes)
            for each in (held, theirs):
                (sandbox,) = (known.sandbox for known in each.records)
                assert each.alive == each.groups == each.networks == {sandbox}
                assert len(each.daemons) == 1
                assert {known.block // WINDOW for known in each.records} <= each.windows
            assert not held.windows & theirs.windows, "no id is the one's and the other's"
            goes.kill()
            goes.start()
            others.check()
            assert _Held.by(goes) == theirs, "the control: it has taken back what was its own"
            assert _Held.by(stays) == held
            work.check()
        left = _Held.by(goes)
        assert [*left.records, *left.groups, *left.networks, *left.daemons] == [], "the control: all of it is gone"
        assert not any(known.init is not None and is_alive(known.init) for known in theirs.records)
        assert _Held.by(stays) == held
        work.check()
        assert work.finish() == b"begun\nwent\n"
    assert far.accepted[CLOSED] == 0
