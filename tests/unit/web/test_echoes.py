"""What waits for the reader of the older form's stream is bounded."""

from __future__ import annotations

import pytest

from k8e.web.echoes import ANSWER_BYTES, ANSWERS, BYTES, Echoes

pytestmark = pytest.mark.anyio


async def test_answers_wait_in_order_and_make_room_when_they_are_read() -> None:
    echoes = Echoes()
    assert [echoes.add(b"%d" % number) for number in range(ANSWERS + 1)] == [True] * ANSWERS + [False]
    assert [await echoes.next() for _ in range(2)] == [b"0", b"1"]
    assert echoes.add(b"another")


async def test_their_bytes_are_bounded() -> None:
    echoes, large = Echoes(), b"x" * ANSWER_BYTES
    fitting = BYTES // ANSWER_BYTES
    assert [echoes.add(large) for _ in range(fitting + 1)] == [True] * fitting + [False]
    assert await echoes.next() == large
    assert echoes.add(large)


async def test_a_full_stream_can_be_woken() -> None:
    echoes = Echoes()
    for _ in range(ANSWERS):
        echoes.add(b"x")
    echoes.wake()
    assert [await echoes.next() for _ in range(ANSWERS + 1)][-1] == b""
