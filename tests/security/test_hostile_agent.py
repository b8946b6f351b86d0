"""An agent that has been rewritten from inside: it can hurt its own session and nothing else.

The engine's own classes talk to a socket on which this test plays the agent.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from k8e.engine.boxes import Box
from k8e.engine.execs import ExecStream
from k8e.engine.files import Files
from k8e.engine.substrate import Substrate
from k8e.engine.tasks import Tasks
from k8e.errors import K8eError, SandboxFailed
from k8e.model import Death, Outcome, Reason, SandboxId, Template
from k8e.wire import frames
from k8e.wire.aio import Link
from k8e.wire.items import Opened
from k8e.wire.mux import Mux
from tests.support.descriptors import Descriptors, descriptors
from tests.support.eventually import eventually

pytestmark = pytest.mark.anyio

Answer = Callable[[Mux, int, Opened], None]
_GIVEN = 7
_GIFT = "/dev/null"


class _Impostor:
    """A listening socket whose answers are lies; with `gifts` it passes a descriptor along with every message."""

    def __init__(self, path: Path, answer: Answer, *, gifts: bool = False) -> None:
        self.path = path
        self._answer = answer
        self._gifts = gifts
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._peers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._listener, *self._peers):
            each.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self._peers.append(peer)
                with contextlib.suppress(OSError, frames.ProtocolError):
                    self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        mux, decoder = Mux(is_dialer=False), frames.Decoder()
        mux.hello({"version": 1, "boot": "impostor", "pid": 1})
        while True:
            while parts := mux.output(1 << 20):
                for part in parts:
                    self._send(peer, bytes(part))
            data = peer.recv(65536)
            if not data:
                return
            for number, item in mux.receive(decoder.feed(data)):
                if isinstance(item, Opened):
                    self._answer(mux, number, item)

    def _send(self, peer: socket.socket, data: bytes) -> None:
        null = os.open(_GIFT, os.O_RDONLY)
        gift = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * _GIVEN))] if self._gifts else []
        sent = peer.sendmsg([data], gift)
        os.close(null)
        if sent < len(data):
            peer.sendall(data[sent:])


class _OneSandbox:
    """As much of a substrate as a box needs: somebody else's socket, and a sandbox that never dies by itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._dead = asyncio.Event()

    async def dial(self, sandbox: SandboxId) -> Link:
        return await Link.dial(self._path, timeout_s=60)

    async def death(self, sandbox: SandboxId) -> Death:
        await self._dead.wait()
        return Death(detail="removed")

    async def out_of_memory(self, sandbox: SandboxId) -> None:
        await asyncio.Event().wait()

    async def destroy(self, sandbox: SandboxId) -> None:
        self._dead.set()

    def oom_kills(self, sandbox: SandboxId) -> int:
        return 0


@contextlib.contextmanager
def _impostor(tmp_path: Path, answer: Answer, *, gifts: bool = False) -> Iterator[_Impostor]:
    impostor = _Impostor(tmp_path / "agent.sock", answer, gifts=gifts)
    try:
        yield impostor
    finally:
        impostor.close()


def _box(impostor: _Impostor, tasks: Tasks) -> Box:
    return Box(SandboxId("sb-x"), Template(), cast("Substrate", _OneSandbox(impostor.path)), tasks)


def _honest(mux: Mux, number: int, item: Opened) -> None:
    if item.op == "exec":
        mux.event(number, "started", {"pid": 7})
        mux.event(number, "exited", {"code": 3, "signal": None, "reason": "exited", "detail": "", "duration_ms": 1})
    mux.end(number, {})


def _liar(fields: dict[str, object]) -> Answer:
    def answer(mux: Mux, number: int, _item: Opened) -> None:
        mux.event(number, "exited", fields)
        mux.end(number, {})

    return answer


async def _outcome(box: Box, tasks: Tasks, *, timeout_s: float = 0.0) -> Outcome:
    stream = ExecStream(box, "exec-1", tasks, timeout_s=timeout_s)
    await stream.start({"id": "exec-1"})
    async for item in stream:
        if isinstance(item, Outcome):
            return item
    raise AssertionError("no outcome")


async def test_the_control_an_honest_agents_outcome_is_believed(tmp_path: Path) -> None:
    with _impostor(tmp_path, _honest) as impostor:
        async with Tasks() as tasks:
            assert (await _outcome(_box(impostor, tasks), tasks)).exit_code == 3


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"code": -1, "signal": "KILL", "reason": ["exited"], "detail": {"a": 1}, "duration_ms": None},
        {"code": 10**30, "signal": 10**30, "reason": "exited", "detail": "x" * 100_000, "duration_ms": -5},
        {"code": True, "signal": 3.5, "reason": "__import__('os').system('id')"},
    ],
)
async def test_a_nonsensical_outcome_becomes_a_bounded_value(tmp_path: Path, fields: dict[str, object]) -> None:
    with _impostor(tmp_path, _liar(fields)) as impostor:
        async with Tasks() as tasks:
            outcome = await _outcome(_box(impostor, tasks), tasks)
    assert 0 <= outcome.exit_code < 2**54
    assert 0 <= outcome.duration_ms < 2**53
    assert len(outcome.detail) <= 4096


async def test_an_agent_that_ends_without_an_outcome_is_an_error_of_that_call(tmp_path: Path) -> None:
    with _impostor(tmp_path, lambda mux, number, _item: mux.end(number, {})) as impostor:
        async with Tasks() as tasks:
            with pytest.raises(SandboxFailed):
                await _outcome(_box(impostor, tasks), tasks)


async def test_nonsense_about_files_is_an_error_of_that_call(tmp_path: Path) -> None:
    with _impostor(tmp_path, lambda mux, number, _item: mux.end(number, {"size": [], "path": 3})) as impostor:
        async with Tasks() as tasks:
            with pytest.raises(K8eError):
                await Files(_box(impostor, tasks)).stat("/workspace/x")


async def test_a_flood_of_events_nobody_asked_for_ends_the_link_not_the_server(tmp_path: Path) -> None:
    def flood(mux: Mux, number: int, _item: Opened) -> None:
        for _ in range(200):
            mux.event(number, "noise", {"x": "y" * 60_000})

    with _impostor(tmp_path, flood) as impostor:
        async with Tasks() as tasks:
            box = _box(impostor, tasks)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            stream = await (await box.link()).open("exec", {"id": "x"})
            for _ in range(200):
                await asyncio.sleep(0)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
            await stream.cancel()


async def test_descriptors_that_an_agent_sends_never_arrive(tmp_path: Path) -> None:
    with _impostor(tmp_path, _honest, gifts=True) as impostor:
        assert _received(impostor.path) == _GIVEN
        async with Tasks() as tasks:
            box = _box(impostor, tasks)
            before = descriptors()
            for _ in range(20):
                assert (await _outcome(box, tasks)).exit_code == 3
            # Twenty answers carried seven each. What else is open now is the link's, or another engine's of this process.
            assert eventually(lambda: not _gifts(descriptors() - before))


async def test_an_agent_that_outstays_the_limit_loses_its_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.engine.execs._AGENT_GRACE_S", 0.1)
    with _impostor(tmp_path, lambda _mux, _number, _item: None) as impostor:
        async with Tasks() as tasks:
            outcome = await _outcome(_box(impostor, tasks), tasks, timeout_s=0.1)
    assert outcome.reason is Reason.SANDBOX_LOST


def _gifts(opened: Descriptors) -> list[int]:
    return [number for number, target in opened if target == _GIFT]


def _received(path: Path) -> int:
    """The control: whoever asks for descriptors gets them."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        _, ancillary, _, _ = peer.recvmsg(65536, socket.CMSG_SPACE(_GIVEN * 4))
        given = array.array("i")
        for _, _, data in ancillary:
            given.frombytes(data[: len(data) - len(data) % given.itemsize])
        for descriptor in given:
            os.close(descriptor)
        return len(given)
