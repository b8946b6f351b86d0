"""A crowd of clients that die at random and a server that is killed twice: every answer is right or a stated limit,
every acknowledged background run gives its result, memory stays flat, and nothing is left over.

`--soak-calls` and `--soak-clients` change the size; what was measured is printed at the end (`pytest -s`).
"""

from __future__ import annotations

import contextlib
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from k8e.client import Chunk, Exit, NotFound, SandboxClient
from k8e.model import MIB
from k8e.setup.provision import Provisioned
from tests.soak.journal import Book, Run
from tests.support.memory import resident_bytes
from tests.support.servers import Server

_PAUSE_S = 0.25
_GRACE_S = 15.0
"""Within which every client has found the next server."""
_GROWTH = 1.1
_SLACK = 16 * MIB
_CREATE_SHARE = 0.1
_STILL_S = 120.0
_SAMPLES = 12
"""Of a server's memory, to compare its thirds: clearing up after the dead may take as long as all of its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    clients: int
    processes: int
    calls: int
    kill_every: int
    """Calls between two deaths of clients."""


_SHORT = Size(clients=32, processes=4, calls=1600, kill_every=400)
_LONG = Size(clients=200, processes=8, calls=20_000, kill_every=800)


@pytest.fixture
def server(data_dir: Path, host: Provisioned) -> Iterator[Server]:
    # Always at the same address, as an operator's is: a client's own second try then finds the next server.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    unlimited = ("--rate-writes", "0", "--rate-reads", "0")
    server = Server(data_dir, "--pool-min", "2", "--pool-max", "4", *unlimited, listen=address)
    server.start()
    yield server
    server.destroy()


@dataclass(slots=True)
class Memory:
    """What a server held over its life, sample by sample."""

    samples: list[int] = field(default_factory=list)

    def sample(self, pid: int) -> None:
        self.samples.append(resident_bytes(pid))

    def check(self) -> None:
        """Flat after the warm-up: the last third holds what the middle third held."""
        third = len(self.samples) // 3
        middle, last = (
            statistics.median(part) for part in (self.samples[third : 2 * third], self.samples[2 * third :])
        )
        assert last <= middle * _GROWTH + _SLACK, self.curve()

    def curve(self) -> str:
        step = max(1, len(self.samples) // 12)
        return " ".join(f"{sample // MIB}" for sample in self.samples[::step]) + " MiB"


class Crowd:
    """The clients' processes: one that is killed is replaced, one that ends by itself has seen something wrong."""

    def __init__(self, server: Server, size: Size, source: random.Random) -> None:
        self._server, self._size, self._source = server, size, source
        self._journals = server.data_dir / "journals"
        self._journals.mkdir()
        self._stop = self._journals / "stop"
        self._born = 0
        self.killed = 0
        self.book = Book(self._journals)
        self._processes = [self._new() for _ in range(size.processes)]

    def _new(self) -> tuple[str, subprocess.Popen[bytes]]:
        name = f"{self._born:04}"
        self._born += 1
        words = [
            str(self._journals / f"{name}.journal"),
            str(self._stop),
            str(self._size.clients // self._size.processes),
        ]
        with (self._journals / f"{name}.log").open("wb") as log:
            argv = [sys.executable, "-m", "tests.soak.crowd_client", *words, str(self._born)]
            return name, subprocess.Popen(argv, env=self._server.environ, stdout=log, stderr=log)

    def check(self) -> None:
        self.book.read()
        assert not self.book.wrong, (self.book.wrong[:10], self._server.complaints())
        for name, process in self._processes:
            assert process.poll() is None, (self._journals / f"{name}.log").read_text()[-3000:]

    def kill_one(self) -> str:
        """Kill a process full of clients, put another in its place, and say whose the journal is."""
        number = self._source.randrange(len(self._processes))
        name, process = self._processes[number]
        _end(process)
        self.killed += 1
        self._processes[number] = self._new()
        return name

    def finish(self) -> None:
        """Let every client end what it does."""
        self._stop.touch()
        for name, process in self._processes:
            assert process.wait(_STILL_S) == 0, (self._journals / f"{name}.log").read_text()[-3000:]
        self.book.read()
        assert not self.book.wrong, self.book.wrong[:10]

    def close(self) -> None:
        for _, process in self._processes:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@dataclass(slots=True)
class Trial:
    """The whole of it: calls go on while clients and servers die."""

    server: Server
    crowd: Crowd
    size: Size
    lives: list[Memory] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """When there was no server, or clients had not found it yet."""
    checked: int = 0

    def run(self) -> None:
        self.lives.append(Memory())
        deaths = [self.size.calls // 4, self.size.calls // 2]
        next_kill = self.size.kill_every
        goal = self.size.calls
        while (done := self._progress()) < goal or deaths or len(self.lives[-1].samples) < _SAMPLES:
            if deaths and done >= deaths[0]:
                deaths.pop(0)
                self._kill_server()
                # The others call on while we clear up after the dead: each server shall have a life to be judged by.
                goal = max(goal, done + self.size.calls // 4)
            if done >= next_kill:
                next_kill = done + self.size.kill_every
                self._take_over(self.crowd.kill_one())
        self.crowd.finish()

    def _progress(self) -> int:
        time.sleep(_PAUSE_S)
        self.crowd.check()
        self.lives[-1].sample(self.server.pid)
        return self.crowd.book.calls

    def _kill_server(self) -> None:
        begun = time.monotonic()
        self.server.kill()
        self.server.start()
        self.gaps.append((begun, time.monotonic() + _GRACE_S))
        self.lives.append(Memory())

    def _take_over(self, name: str) -> None:
        """The dead clients' results are there for whoever asks, and their sessions are somebody's to end."""
        book = self.crowd.book
        book.read()
        left = book.sessions.pop(name, set())
        with SandboxClient(target=self.server.target()) as client:
            for run in [run for run in book.runs.values() if run.session_id in left]:
                self._check_run(client, run)
            for sid in left:
                client.destroy_session(sid)

    def _check_run(self, client: SandboxClient, run: Run) -> None:
        items = list(client.attach_run(run.run_id))
        output = b"".join(item.data for item in items if isinstance(item, Chunk))
        assert (output, [item.exit_code for item in items if isinstance(item, Exit)]) == (run.output, [run.code])
        del self.crowd.book.runs[run.run_id]
        self.checked += 1

    def check(self) -> None:
        """Every promise, now that all is quiet."""
        book = self.crowd.book
        with SandboxClient(target=self.server.target()) as client:
            for run in list(book.runs.values()):
                self._check_run(client, run)
            # Again and again, because what a client had begun when it was killed may come to its end only now.
            deadline = time.monotonic() + _STILL_S
            while views := client.sessions():
                assert time.monotonic() < deadline, views
                for view in views:
                    with contextlib.suppress(NotFound):  # a parent takes its children along
                        client.destroy_session(view.session_id)
        lost = [
            each for each in book.refusals if not any(each[0] <= end and begun <= each[1] for begun, end in self.gaps)
        ]
        assert not lost, lost[:10]
        assert set(book.outcomes) <= {"ok", "Exhausted", "Unreachable", "NotFound"}
        assert book.kinds["create"] <= book.calls * _CREATE_SHARE, book.kinds
        assert self.crowd.killed
        assert book.checked + self.checked > 0
        self.lives[-1].check()

    def figures(self, seconds: float) -> str:
        book = self.crowd.book
        away = ", ".join(f"{end - begun - _GRACE_S:.1f} s" for begun, end in self.gaps)
        curves = "\n".join(f"  server {number}: {life.curve()}" for number, life in enumerate(self.lives, 1))
        return (
            f"{self.size.clients} clients, {book.calls} calls in {seconds:.0f} s ({book.calls / seconds:.0f}/s), "
            f"{self.crowd.killed} client processes and {len(self.gaps)} servers killed (back after {away})\n"
            f"  outcomes: {dict(book.outcomes)}; calls: {dict(book.kinds)}; slowest {book.slowest_s:.1f} s\n"
            f"  background runs checked: {book.checked} by their clients, {self.checked} by others; lost: 0\n{curves}"
        )


def _sized(request: pytest.FixtureRequest, size: Size) -> Size:
    calls = request.config.getoption("--soak-calls") or size.calls
    clients = request.config.getoption("--soak-clients") or size.clients
    return Size(clients=clients, processes=size.processes, calls=calls, kill_every=size.kill_every)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(_SHORT, id="short", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(_LONG, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_a_crowd_gets_right_answers_while_clients_and_servers_die(
    server: Server, size: Size, request: pytest.FixtureRequest
) -> None:
    size = _sized(request, size)
    begun = time.monotonic()
    crowd = Crowd(server, size, random.Random(size.calls))
    trial = Trial(server, crowd, size)
    with contextlib.closing(crowd):
        trial.run()
    seconds = time.monotonic() - begun
    trial.check()
    print("\n" + trial.figures(seconds))
