"""An agent that has been rewritten from inside: it can hurt its own session and nothing else.

The engine's own classes talk to a socket on which this test plays the agent.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import math
import os
import re
import resource
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from k8e.doors.service.errors import answer_for
from k8e.engine import ports as engine_ports
from k8e.engine.backoff import DEFAULT_BACKOFF, BackoffSettings
from k8e.engine.boxes import Box
from k8e.engine.commands import processes
from k8e.engine.files import Files
from k8e.engine.ports import Ports
from k8e.engine.process import Process, Reading
from k8e.engine.process_stream import ProcessStream
from k8e.engine.session import Session
from k8e.engine.substrate import Substrate
from k8e.engine.terminals import Terminal
from k8e.errors import K8eError, SandboxFailed
from k8e.model import MIB, Outcome, Reason, SandboxId
from k8e.tasks import Tasks
from k8e.wire import frames
from k8e.wire.aio import Link
from k8e.wire.items import Opened
from k8e.wire.mux import Mux
from k8e.wire.outbox import Outbox, window
from tests.support.credentials import CREDENTIALS
from tests.support.descriptors import Descriptors, descriptors
from tests.support.eventually import eventually

pytestmark = pytest.mark.anyio

Answer = Callable[[Mux, int, Opened], bytes | None]
"""What it returns is sent as it is."""
PATIENCE_S = 60.0
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
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)

    def _talk(self, peer: socket.socket) -> None:
        mux, decoder = Mux(is_dialer=False), frames.Decoder()
        mux.hello({"version": 1, "boot": "impostor", "pid": 1})
        while True:
            self._flush(mux, peer)
            data = peer.recv(65536)
            if not data:
                return
            for number, item in mux.receive(decoder.feed(data)):
                if isinstance(item, Opened):
                    try:
                        raw = self._answer(mux, number, item)
                    except _HungUp:
                        self._flush(mux, peer)
                        return
                    self._flush(mux, peer)
                    self._send(peer, raw or b"")

    def _flush(self, mux: Mux, peer: socket.socket) -> None:
        while parts := mux.output(1 << 20):
            for part in parts:
                self._send(peer, bytes(part))

    def _send(self, peer: socket.socket, data: bytes) -> None:
        if not data:
            return
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
        self.dials = 0

    async def connect(self, sandbox: SandboxId) -> Link:
        self.dials += 1
        return await Link.dial(self._path, CREDENTIALS, timeout_s=60)

    async def release(self, sandbox: SandboxId) -> None:
        """It is gone as soon as nobody dials it."""


@contextlib.contextmanager
def _impostor(tmp_path: Path, answer: Answer, *, gifts: bool = False) -> Iterator[_Impostor]:
    impostor = _Impostor(tmp_path / "agent.sock", answer, gifts=gifts)
    try:
        yield impostor
    finally:
        impostor.close()


def _box(impostor: _Impostor, tasks: Tasks) -> Box:
    return _box_in(_OneSandbox(impostor.path), tasks)


def _box_in(sandbox: _OneSandbox, tasks: Tasks, *, backoff: BackoffSettings = DEFAULT_BACKOFF) -> Box:
    return Box(SandboxId("sb-x"), cast("Substrate", sandbox), tasks, backoff=backoff)


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
    stream = ProcessStream(box, "exec-1", tasks, timeout_s=timeout_s)
    await stream.start({"id": "exec-1"})
    async for item in stream.items():
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
        {"code": None, "signal": None, "reason": ["exited"], "detail": {"a": 1}, "duration_ms": None},
        {"code": 255, "signal": 64, "reason": "exited", "detail": "x" * 100_000, "duration_ms": 2**53},
        {"code": 1, "reason": "__import__('os').system('id')", "detail": "\ud800"},
    ],
)
async def test_a_nonsensical_outcome_becomes_a_bounded_value(tmp_path: Path, fields: dict[str, object]) -> None:
    with _impostor(tmp_path, _liar(fields)) as impostor:
        async with Tasks() as tasks:
            outcome = await _outcome(_box(impostor, tasks), tasks)
    assert 0 <= outcome.exit_code <= 255
    assert 0 <= outcome.duration_ms <= 2**53
    assert len(outcome.detail) <= 4096
    assert outcome.detail.encode() == outcome.detail.encode("utf-8", "surrogateescape")


BAD_NUMBERS = [
    "Infinity",
    "-Infinity",
    "NaN",
    "1e999",
    "-1e999",
    "9223372036854775809",
    "-9223372036854775809",
    "1" + 5000 * "0",
    "-1" + 5000 * "0",
    "true",
    '"7"',
    "[" * 900 + "]" * 900,
]
_ENTRY = {"path": "/x", "kind": "file", "size": 1, "modified": 1.5, "mode": 420, "target": ""}
_PROCESS = {"pid": 7, "comm": "sh", "state": "S", "args": "sh -c x"}
_ENDED = {"code": 3, "signal": None, "reason": "exited", "detail": "", "duration_ms": 1}


def _event(number: int, name: str, fields: object) -> tuple[int, int, object]:
    return number, frames.EVENT, {"event": name, "fields": fields}


def _ended(number: int, result: object) -> tuple[int, int, object]:
    return number, frames.END, {"result": result}


def _truth(number: int, op: str) -> list[tuple[int, int, object]]:
    """What an honest agent says to this question."""
    match op:
        case "file.stat":
            return [_ended(number, _ENTRY)]
        case "file.list":
            return [_event(number, "entries", {"entries": [_ENTRY]}), _ended(number, {})]
        case "file.write":
            return [_event(number, "written", {"size": 1}), _ended(number, {})]
        case "exec":
            return [_event(number, "started", {"pid": 7}), _event(number, "exited", _ENDED), _ended(number, {})]
        case "processes":
            return [_ended(number, {"processes": [_PROCESS]})]
        case "foreground":
            return [_ended(number, {"pgid": 7, "input_waiting": True})]
        case _:
            return [_ended(number, {})]


def _with_number(op: str, field: str, number: str) -> Answer:
    """Tells the truth but for one number, the first time that it is asked this."""
    left = 1

    def answer(mux: Mux, stream: int, item: Opened) -> bytes:
        nonlocal left
        # Written by hand: nobody else would write such numbers.
        lies, left = (left, 0) if item.op == op else (0, left)
        said = b""
        for each, kind, body in _truth(stream, item.op):
            text = json.dumps(body)
            if lies:
                text = re.sub(rf'("{field}": )(null|[0-9.]+)', lambda found: found[1] + number, text)
            said += frames.frame(each, kind, text.encode())
        return said

    return answer


async def _stat(box: Box, _tasks: Tasks) -> object:
    return await Files(box).stat("/x")


async def _list(box: Box, _tasks: Tasks) -> object:
    return await Files(box).list("/", recursive=True)


async def _write(box: Box, _tasks: Tasks) -> object:
    async def nothing() -> AsyncIterator[bytes]:
        for each in list[bytes]():
            yield each

    return await Files(box).write("/x", nothing())


@dataclass
class _InSession:
    box: Box
    session_id: str = "s-x"
    last_used: float = 0.0
    busy: int = 0
    ports: int = 0

    def live_box(self) -> Box:
        return self.box


async def _processes(box: Box, _tasks: Tasks) -> object:
    return await processes(cast("Session", _InSession(box)))


async def _foreground(box: Box, tasks: Tasks) -> object:
    return await Terminal(Process(cast("Session", _InSession(box)), "t-x", tasks), pid=7).foreground()


CALLS: list[tuple[str, Callable[[Box, Tasks], Awaitable[object]], tuple[str, ...]]] = [
    ("file.stat", _stat, ("size", "modified", "mode")),
    ("file.list", _list, ("size", "modified", "mode")),
    ("file.write", _write, ("size",)),
    ("exec", _outcome, ("pid", "code", "signal", "duration_ms")),
    ("processes", _processes, ("pid",)),
    ("foreground", _foreground, ("pgid",)),
]


@pytest.mark.parametrize("number", BAD_NUMBERS, ids=lambda number: number[:24])
@pytest.mark.parametrize(
    ("op", "call", "field"),
    [pytest.param(op, call, field, id=f"{op}-{field}") for op, call, fields in CALLS for field in fields],
)
async def test_a_bad_number_is_an_error_of_that_call_and_of_no_other(
    tmp_path: Path, op: str, call: Callable[[Box, Tasks], Awaitable[object]], field: str, number: str
) -> None:
    with _impostor(tmp_path, _with_number(op, field, number)) as impostor:
        async with Tasks() as tasks:
            sandbox = _OneSandbox(impostor.path)
            box = _box_in(sandbox, tasks)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(SandboxFailed, match=f"answered nonsense: its '{field}'"):
                    await call(box, tasks)
                # The control: the same call, told the truth, over the same link.
                assert await call(box, tasks)
            assert sandbox.dials == 1


@pytest.mark.parametrize("path", ["x" * 4097, "\ud800", 7, None])
async def test_a_path_that_is_none_is_an_error_of_that_call(tmp_path: Path, path: object) -> None:
    entries = [dict(_ENTRY), {**_ENTRY, "path": path}]
    told = iter([entries, [_ENTRY]])

    def answer(mux: Mux, number: int, item: Opened) -> None:
        mux.event(number, "entries", {"entries": next(told)})
        mux.end(number, {})

    with _impostor(tmp_path, answer) as impostor:
        async with Tasks() as tasks:
            box = _box(impostor, tasks)
            with pytest.raises(SandboxFailed, match="answered nonsense: its 'path'"):
                await Files(box).list("/", recursive=True)
            assert len((await Files(box).list("/", recursive=True)).entries) == 1


async def test_a_listing_without_end_is_cut_into_pages(tmp_path: Path) -> None:
    def answer(mux: Mux, number: int, item: Opened) -> None:
        for batch in range(40):
            entries = [{**_ENTRY, "path": f"/d/{batch:04}{each:04}"} for each in range(500)]
            mux.event(number, "entries", {"entries": entries})

    with _impostor(tmp_path, answer) as impostor:
        async with Tasks() as tasks:
            page = await Files(_box(impostor, tasks)).list("/d", recursive=True)
            assert (len(page.entries), page.after) == (10_000, "/d/00190499")


@pytest.mark.parametrize("again", ["/d/b", "/d/a", "/c"])
async def test_a_listing_that_goes_back_is_nonsense(tmp_path: Path, again: str) -> None:
    told = iter([["/d/a", "/d/b", again], ["/d/a", "/d/b", "/d/b/c"]])

    def answer(mux: Mux, number: int, item: Opened) -> None:
        mux.event(number, "entries", {"entries": [{**_ENTRY, "path": path} for path in next(told)]})
        mux.end(number, {})

    with _impostor(tmp_path, answer) as impostor:
        async with Tasks() as tasks:
            files = Files(_box(impostor, tasks))
            with pytest.raises(SandboxFailed, match="answered nonsense: a listing out of order"):
                await files.list("/d", recursive=True)
            assert len((await files.list("/d", recursive=True)).entries) == 3


@pytest.mark.parametrize("code", ["io", "nobody knows it", 7, None])
async def test_the_words_of_a_refusal_are_shown_whatever_they_are(tmp_path: Path, code: object) -> None:
    def answer(mux: Mux, number: int, item: Opened) -> bytes:
        body = {"error": {"code": code, "message": "\ud800" + "x" * 10_000}}
        return frames.frame(number, frames.END, json.dumps(body).encode())

    with _impostor(tmp_path, answer) as impostor:
        async with Tasks() as tasks:
            with pytest.raises(K8eError) as raised:
                await Files(_box(impostor, tasks)).stat("/x")
    _, shown, _ = answer_for(raised.value)
    assert shown.encode()


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
    monkeypatch.setattr("k8e.engine.process_stream._AGENT_GRACE_S", 0.1)
    with _impostor(tmp_path, lambda _mux, _number, _item: None) as impostor:
        async with Tasks() as tasks:
            outcome = await _outcome(_box(impostor, tasks), tasks, timeout_s=0.1)
    assert outcome.reason is Reason.SANDBOX_LOST


class _HungUp(Exception):
    """How a test's agent ends a link, once everything before is sent."""


def _hangs_up(*, times: float, piece: int = 0) -> Answer:
    """Says hello and hangs up on the first that is asked, so many times, each time after a piece of a command's output."""
    left, text = times, b"all that it said"

    def answer(mux: Mux, number: int, item: Opened) -> None:
        nonlocal left
        if item.op not in ("exec", "attach"):
            mux.end(number, {})
            return
        at = int(item.args.get("offsets", {}).get("1", 0))
        outbox = Outbox(window(1), at)
        mux.event(number, "started", {"pid": 7})
        mux.attach(number, 1, outbox, cursor=at)
        left -= 1
        if left >= 0:
            outbox.append(text[at : at + piece])
            raise _HungUp
        outbox.append(text[at:])
        outbox.finish()
        ended = {"code": 0, "signal": None, "reason": "exited", "detail": "", "duration_ms": 1}
        mux.event(number, "exited", ended, after_data=True)
        mux.end(number, {})

    return answer


async def _said(stream: ProcessStream) -> tuple[bytes, Outcome]:
    said = b""
    async for item in stream.items():
        if isinstance(item, Outcome):
            return said, item
        said += item.payload
    raise AssertionError("no outcome")


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_the_control_a_link_that_breaks_costs_a_command_nothing(tmp_path: Path, times: int) -> None:
    with _impostor(tmp_path, _hangs_up(times=times, piece=4)) as impostor:
        async with Tasks() as tasks:
            sandbox = _OneSandbox(impostor.path)
            stream = ProcessStream(_box_in(sandbox, tasks), "exec-1", tasks)
            await stream.start({"id": "exec-1"})
            said, outcome = await _said(stream)
    assert (said, outcome.exit_code) == (b"all that it said", 0)
    assert sandbox.dials == 1 + times


async def test_an_agent_that_hangs_up_on_whoever_dials_ends_the_command_not_the_server(tmp_path: Path) -> None:
    backoff = BackoffSettings(first_s=0.001, most_s=0.25)
    with _impostor(tmp_path, _hangs_up(times=math.inf)) as impostor:
        async with Tasks() as tasks:
            sandbox = _OneSandbox(impostor.path)
            box = _box_in(sandbox, tasks, backoff=backoff)
            stream = ProcessStream(box, "exec-1", tasks)
            await stream.start({"id": "exec-1"})
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(SandboxFailed, match="it hung up 9 times in a row"):
                    await _said(stream)
            # One for each pause between the first and the longest.
            assert sandbox.dials == 9


async def test_an_agent_that_hangs_up_is_dialled_ever_more_rarely_whoever_needs_it(tmp_path: Path) -> None:
    with _impostor(tmp_path, _hangs_up(times=math.inf)) as impostor:
        async with Tasks() as tasks:
            sandbox = _OneSandbox(impostor.path)
            box = _box_in(sandbox, tasks)
            loop = asyncio.get_running_loop()
            began = loop.time()
            streams = [ProcessStream(box, f"exec-{number}", tasks) for number in range(20)]
            for stream in streams:
                await stream.start({"id": stream.process_id})
            reading = [tasks.start(_said(stream), name="reading") for stream in streams]
            async with asyncio.timeout(PATIENCE_S):
                while sandbox.dials < 6:
                    await asyncio.sleep(0.001)
            # Five pauses, each twice the one before.
            assert loop.time() - began >= 31 * DEFAULT_BACKOFF.first_s
            for task in reading:
                task.cancel()


def _talks(size: int, *, pid: int | None) -> Answer:
    """So much output of every command and file that is asked for; without a pid no word of a start."""

    def answer(mux: Mux, number: int, item: Opened) -> None:
        outbox = Outbox(max(size, 1))
        outbox.append(bytes(size))
        if pid is not None:
            mux.event(number, "started", {"pid": pid})
        mux.attach(number, 1, outbox, cursor=0)
        outbox.finish()
        if item.op == "file.read":
            mux.end(number, {})

    return answer


async def _started(box: Box, tasks: Tasks) -> Process:
    process, stream = Process(cast("Session", _InSession(box)), "exec-1", tasks), ProcessStream(box, "exec-1", tasks)
    process.begin_reading(Reading(stream=stream), left=lambda _parting: None)
    await stream.start({"id": "exec-1"})
    return process


@pytest.mark.parametrize("pid", [None, 0])
async def test_output_of_a_command_that_never_starts_is_not_kept_without_bound(tmp_path: Path, pid: int | None) -> None:
    with _impostor(tmp_path, _talks(64 * MIB, pid=pid)) as impostor:
        async with Tasks() as tasks:
            process = await _started(_box(impostor, tasks), tasks)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(SandboxFailed, match="answered nonsense"):
                    await process.started()


@pytest.mark.parametrize("first", [None, 0])
async def test_the_control_output_before_the_news_of_a_start_is_kept(tmp_path: Path, first: int | None) -> None:
    """Zero is what an agent says of an interpreter that was ready before its pid was known; the pid follows."""

    def answer(mux: Mux, number: int, item: Opened) -> None:
        _talks(MIB, pid=first)(mux, number, item)
        mux.event(number, "started", {"pid": 7}, after_data=True)

    with _impostor(tmp_path, answer) as impostor:
        async with Tasks() as tasks:
            process = await _started(_box(impostor, tasks), tasks)
            async with asyncio.timeout(PATIENCE_S):
                assert await process.started() == 7
                said = 0
                while said < MIB:
                    item = await process.next()
                    assert not isinstance(item, Outcome)
                    said += len(item.payload)


@pytest.mark.parametrize(("sent", "is_believed"), [(4096, True), (4097, False), (8 * MIB, False)])
async def test_no_more_of_a_file_is_taken_than_was_asked_for(tmp_path: Path, sent: int, is_believed: bool) -> None:
    with _impostor(tmp_path, _talks(sent, pid=None)) as impostor:
        async with Tasks() as tasks:
            size = 0
            with contextlib.nullcontext() if is_believed else pytest.raises(SandboxFailed, match="more of a file"):
                async for chunk in Files(_box(impostor, tasks)).read("/x", length=4096):
                    size += len(chunk)
            assert size <= 4096
            assert not is_believed or size == sent


def _says(*said: tuple[str, object]) -> Answer:
    """What an agent says to whoever wants a connection: events, data on a channel, or an end."""

    def answer(mux: Mux, number: int, item: Opened) -> bytes:
        frame = b""
        for what, value in said:
            if what == "end":
                frame += frames.frame(number, frames.END, json.dumps({"result": value}).encode())
            elif what == "error":
                frame += frames.frame(number, frames.END, json.dumps({"error": value}).encode())
            elif what == "data":
                channel, offset, payload = cast("tuple[int, int, bytes]", value)
                frame += frames.data_head(number, channel, offset, len(payload)) + payload
            elif what == "eof":
                frame += frames.offset_frame(number, frames.EOF, 1, cast("int", value))
            else:
                frame += frames.frame(number, frames.EVENT, json.dumps({"event": what, "fields": value}).encode())
        return frame

    return answer


async def _exchanged(box: Box, session: _InSession) -> bytes:
    """Everything that a connection has to say, to both ends."""
    connection = await Ports(per_session=1).open(cast("Session", session), 80)
    try:
        said = b"".join([piece async for piece in connection])
        await connection.ended()
    finally:
        await connection.close()
    return said


CONNECTED: tuple[str, object] = ("connected", {})


async def test_the_control_an_honest_agents_connection_is_believed(tmp_path: Path) -> None:
    answer = _says(CONNECTED, ("data", (1, 0, b"hello")), ("eof", 5), ("end", {}))
    with _impostor(tmp_path, answer) as impostor:
        async with Tasks() as tasks:
            session = _InSession(_box(impostor, tasks))
            assert await _exchanged(session.box, session) == b"hello"
            assert (session.busy, session.ports) == (0, 0)


@pytest.mark.parametrize(
    "said",
    [
        [("end", {})],
        [("noise", {"port": 80})],
        [("data", (1, 0, b"too early"))],
        [("eof", 0)],
        [CONNECTED, ("end", {})],
        [CONNECTED, CONNECTED],
        [CONNECTED, ("noise", {"x": "y" * 1000})],
        [CONNECTED, ("data", (2, 0, b"on no channel of ours"))],
        [CONNECTED, ("data", (1, 0, b""))],
        [CONNECTED, ("eof", 0), ("noise", {})],
        [CONNECTED, ("error", {"code": ["x"], "message": "\ud800" + "x" * 10_000})],
        [("error", {"code": "nobody knows it", "message": 7})],
    ],
    ids=lambda said: "-".join(what for what, _ in said),
)
async def test_nonsense_about_a_connection_is_an_error_of_that_connection(
    tmp_path: Path, said: list[tuple[str, object]]
) -> None:
    with _impostor(tmp_path, _says(*said)) as impostor:
        async with Tasks() as tasks:
            session = _InSession(_box(impostor, tasks))
            with pytest.raises(SandboxFailed) as raised:
                async with asyncio.timeout(PATIENCE_S):
                    await _exchanged(session.box, session)
            assert answer_for(raised.value)[1].encode()
            assert (session.busy, session.ports) == (0, 0)


@pytest.mark.parametrize(
    "said",
    [
        [CONNECTED, *(("data", (1, at * 262144, bytes(262144))) for at in range(5))],
        [CONNECTED, ("data", (1, 7, b"from nowhere")), ("data", (1, 7, b"again"))],
        [CONNECTED, *(("noise", {"x": "y" * 60_000}) for _ in range(30))],
    ],
    ids=["more than its window", "offsets that lie", "events without end"],
)
async def test_an_agent_that_overruns_a_connection_loses_its_link(
    tmp_path: Path, said: list[tuple[str, object]]
) -> None:
    with _impostor(tmp_path, _says(*said)) as impostor:
        async with Tasks() as tasks:
            session = _InSession(_box(impostor, tasks))
            with pytest.raises(SandboxFailed):
                async with asyncio.timeout(PATIENCE_S):
                    await _exchanged(session.box, session)
            assert (session.busy, session.ports) == (0, 0)


async def test_an_agent_that_never_answers_is_waited_for_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_ports, "_CONNECT_TIMEOUT_S", 0.2)
    with _impostor(tmp_path, lambda *_: None) as impostor:
        async with Tasks() as tasks:
            session = _InSession(_box(impostor, tasks))
            with pytest.raises(SandboxFailed, match="connect to port 80: the sandbox's agent does not answer"):
                async with asyncio.timeout(PATIENCE_S):
                    await _exchanged(session.box, session)
            assert (session.busy, session.ports) == (0, 0)


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
