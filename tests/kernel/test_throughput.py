"""Output that nobody reads fast enough slows its writer down; it never piles up in the server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from k8e.client import Chunk, Exit, Limits, SandboxClient
from k8e.client.discovery import Target
from k8e.model import MIB, Runtime
from tests.support.memory import peak_bytes, reset_peak, resident_bytes
from tests.support.servers import Server

_PIECES = 1024
_TOTAL = _PIECES * MIB
_GROWTH = 32 * MIB
_READ_FIRST = 4
"""Chunks taken before the reader stalls: the stream is under way, and everything behind it can fill up."""
_LOOKS = 30
_WRITER = f"""
import os
piece = bytes({MIB})
count = os.open("/workspace/count", os.O_CREAT | os.O_WRONLY)
for number in range(1, {_PIECES + 1}):
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(1, rest):]
    os.pwrite(count, b"%d" % number, 0)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runtime", "way"),
    [(Runtime.GVISOR, Server.target), (Runtime.CONTAINER, Server.target), (Runtime.CONTAINER, Server.by_tls)],
    ids=["gvisor-socket", "container-socket", "container-tls"],
)
def test_a_gibibyte_to_a_slow_reader_does_not_grow_the_server(
    mortal: Server, runtime: Runtime, way: Callable[[Server], Target]
) -> None:
    with SandboxClient(target=way(mortal)) as client:
        sid = client.create_session(runtime_class=runtime)
        # The first stream loads whatever streams need; only then is there something to compare with.
        assert _drained(client, sid, 8 * MIB) == 8 * MIB
        before = resident_bytes(mortal.pid)
        reset_peak(mortal.pid)
        stream = client.run_output(_WRITER, "python", timeout=280, session_id=sid)
        seen = sum(_size(next(stream)) for _ in range(_READ_FIRST))
        written = _written_when_blocked(client, sid)
        stalled = resident_bytes(mortal.pid) - before
        seen += sum(map(_size, stream))
        peak = peak_bytes(mortal.pid) - before
    assert written < _GROWTH // MIB
    assert seen == _TOTAL
    assert (stalled < _GROWTH, peak < _GROWTH) == (True, True), (stalled // MIB, peak // MIB)


def test_the_control_a_server_that_keeps_output_is_seen_to_grow(mortal: Server) -> None:
    """What a unary call captures is kept on purpose, up to the session's limit: that must show."""
    with SandboxClient(target=mortal.target()) as client:
        sid = client.create_session(runtime_class="container", limits=Limits(output_bytes=2 * _GROWTH))
        assert _drained(client, sid, 8 * MIB) == 8 * MIB
        before = resident_bytes(mortal.pid)
        reset_peak(mortal.pid)
        # More than what it must be seen to grow by: large answers are held once, not in several copies.
        size = _GROWTH * 3 // 2
        answer = client.exec(sid, ["head", "-c", str(size), "/dev/zero"])
        assert len(answer.stdout_bytes) == size
        assert peak_bytes(mortal.pid) - before > _GROWTH


def _drained(client: SandboxClient, sid: str, size: int) -> int:
    return sum(map(_size, client.exec_output(sid, ["head", "-c", str(size), "/dev/zero"])))


def _size(item: Chunk | Exit) -> int:
    return len(item.data) if isinstance(item, Chunk) else 0


def _written_when_blocked(client: SandboxClient, sid: str) -> int:
    """How many pieces the writer got rid of before nobody took any more: seen to stand still many times over."""
    counts = [_written(client, sid)]
    while len(counts) < _LOOKS or len(set(counts[-_LOOKS:])) > 1:
        counts.append(_written(client, sid))
        assert counts[-1] < _PIECES, "the writer was never blocked"
    return counts[-1]


def _written(client: SandboxClient, sid: str) -> int:
    return int(client.exec(sid, "cat /workspace/count").stdout or 0)
