"""Sessions come and go by the thousand: the server's memory, descriptors and threads stay where they were."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from k8e.client import SandboxClient
from k8e.model import MIB, Runtime
from k8e.setup.provision import Provisioned
from tests.support.descriptors import Descriptors, descriptors
from tests.support.engines import RUNTIMES
from tests.support.eventually import eventually
from tests.support.memory import resident_bytes
from tests.support.servers import Server

_GROWTH = 16 * MIB
_STRAY = 4
"""Descriptors that may be open for something that is just being done."""
_POOLED = 24
"""Threads by which the server's own pools may still grow: how many it needs at once is the machine's to say."""
_WARM_UP = 5
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a server process holds."""

    resident: int
    descriptors: Descriptors
    threads: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        return cls(resident_bytes(pid), descriptors(pid), len(list(Path(f"/proc/{pid}/task").iterdir())))


@pytest.fixture
def fresh(data_dir: Path, host: Provisioned) -> Iterator[Server]:
    # One size, because every member has its own descriptors, and a busy machine keeps more members.
    server = Server(data_dir, "--pool-min", "1", "--pool-max", "1")
    server.start()
    yield server
    server.destroy()


@pytest.mark.parametrize(
    "cycles",
    [
        pytest.param(20, id="short", marks=pytest.mark.slow),
        pytest.param(1000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
@pytest.mark.parametrize("runtime", RUNTIMES, ids=str)
def test_sessions_that_come_and_go_leave_nothing_in_the_server(fresh: Server, runtime: Runtime, cycles: int) -> None:
    with SandboxClient(target=fresh.target()) as client:
        for number in range(_WARM_UP):
            _cycle(client, runtime, number)
        # What waits in the pool is open too, so both times it is full.
        assert eventually(lambda: _is_full(client))
        before = Footprint.of(fresh.pid)
        for number in range(cycles):
            _cycle(client, runtime, number)
        assert client.sessions() == []
        assert eventually(lambda: _is_full(client))
        after = _at_rest(fresh.pid, before)
    assert after.resident - before.resident < _GROWTH, (before, after)
    assert len(after.descriptors) - len(before.descriptors) <= _STRAY, sorted(after.descriptors)
    assert after.threads - before.threads <= min(_POOLED, cycles // 2), (before, after)


def _is_full(client: SandboxClient) -> bool:
    """Whether the pool has what it wants and makes nothing more."""
    shelves = client.server_status().pool
    return all(shelf["building"] == 0 and int(str(shelf["ready"])) >= int(str(shelf["target"])) for shelf in shelves)


def _at_rest(pid: int, before: Footprint) -> Footprint:
    """The last sandbox may still be going: a leak stays, work under way ends."""
    deadline = time.monotonic() + _PATIENCE_S
    now = Footprint.of(pid)
    while _is_more(now, before) and time.monotonic() < deadline:
        time.sleep(0.1)
        now = Footprint.of(pid)
    return now


def _is_more(now: Footprint, before: Footprint) -> bool:
    return len(now.descriptors) - len(before.descriptors) > _STRAY or now.resident - before.resident >= _GROWTH


def _cycle(client: SandboxClient, runtime: Runtime, number: int) -> None:
    sid = client.create_session(runtime_class=runtime)
    assert client.exec(sid, f"echo {number}").stdout == f"{number}\n"
    assert client.run(f"print({number})", "python", session_id=sid).stdout == f"{number}\n"
    client.destroy_session(sid)
