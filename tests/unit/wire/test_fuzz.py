"""A hostile agent: whatever it sends, the engine's side either understands it or closes the link, in bounded memory.

`python -m tests.unit.wire.test_fuzz SECONDS` is the long form.
"""

from __future__ import annotations

import random
import struct
import sys
import time

import pytest

from k8e.wire.frames import MAX_FRAME, Decoder, ProtocolError
from k8e.wire.items import Data
from k8e.wire.mux import Mux
from k8e.wire.outbox import WINDOW, Outbox

_JSON = [
    b"{}",
    b"[]",
    b'{"event":"x","fields":{}}',
    b'{"result":{}}',
    b'{"error":{"code":1}}',
    b"\xff",
    b"9" * 5000,
    b"null",
]


def hostile(source: random.Random) -> bytes:
    """A frame that is valid in places."""
    stream = source.choice([0, 1, 2, 3, source.getrandbits(32)])
    kind = source.choice([*range(1, 10), source.getrandbits(8)])
    channel = source.choice([0, 1, 2, 255, source.getrandbits(8)])
    body = source.choice([*_JSON, source.randbytes(source.randrange(40)), bytes(source.randrange(70_000))])
    if source.random() < 0.6:
        body = struct.pack(">Q", source.choice([0, 1, source.randrange(1 << 21), source.getrandbits(64)])) + body
    length = len(body) if source.random() < 0.95 else source.getrandbits(source.choice([8, 20, 32]))
    return struct.pack(">IBBI", stream, kind, channel, length) + body


def attack(seed: int) -> int:
    """One link's life; how many frames it believed."""
    source = random.Random(seed)
    mux, decoder = Mux(is_dialer=True), Decoder()
    for number in range(3):
        mux.open("x", {}, offsets={1: 0} if number == 2 else None)
    mux.attach(1, 0, Outbox())
    believed, held = 0, 0
    try:
        for _ in range(200):
            for _, item in mux.receive(decoder.feed(hostile(source))):
                believed += 1
                held += len(item.payload) if isinstance(item, Data) else 0
            mux.output(1 << 20)
    except ProtocolError:
        pass
    assert held <= 3 * 256 * WINDOW
    assert len(decoder.space()) <= 2 * (MAX_FRAME + 10)
    return believed


@pytest.mark.parametrize("seed", range(40))
def test_hostile_frames_are_refused_and_nothing_else_happens(seed: int) -> None:
    for part in range(25):
        attack(seed * 1000 + part)


def test_the_control_some_hostile_frames_are_understood() -> None:
    assert sum(attack(seed) for seed in range(300)) > 0


if __name__ == "__main__":
    deadline, count = time.monotonic() + float(sys.argv[1]), 0
    while time.monotonic() < deadline:
        attack(count := count + 1)
    print(f"{count} links attacked")
