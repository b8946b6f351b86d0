"""Envelopes: cut anywhere they come out whole, and no claim is believed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.doors.connect.envelopes import Envelopes, enclosed
from k8e.doors.service.fields import MESSAGE_BYTES
from k8e.errors import Exhausted, HostUnsupported, InvalidSpec, K8eError


def taken(envelopes: Envelopes) -> list[bytes]:
    return list(iter(envelopes.take, None))


@given(st.lists(st.binary(max_size=200)), st.integers(min_value=1, max_value=50))
def test_messages_come_out_as_they_went_in_wherever_they_are_cut(messages: list[bytes], size: int) -> None:
    stream = b"".join(map(enclosed, messages))
    envelopes, found = Envelopes(), []
    for at in range(0, len(stream), size):
        envelopes.feed(stream[at : at + size])
        found += taken(envelopes)
    envelopes.finish()
    assert found == messages


def test_the_longest_message_is_awaited_and_one_byte_more_is_refused_by_its_head_alone() -> None:
    control = Envelopes()
    control.feed(struct.pack(">BI", 0, MESSAGE_BYTES))
    assert control.take() is None
    envelopes = Envelopes()
    envelopes.feed(struct.pack(">BI", 0, MESSAGE_BYTES + 1))
    with pytest.raises(Exhausted):
        envelopes.take()


@pytest.mark.parametrize(
    ("flags", "error"), [(1, HostUnsupported), (2, InvalidSpec), (3, HostUnsupported), (128, InvalidSpec)]
)
def test_an_envelope_that_is_no_plain_message_is_refused(flags: int, error: type[K8eError]) -> None:
    envelopes = Envelopes()
    envelopes.feed(enclosed(b"{}", flags=flags))
    with pytest.raises(error):
        envelopes.take()


@pytest.mark.parametrize("cut", [1, 4, 5, 6])
def test_a_stream_that_ends_inside_an_envelope_is_refused(cut: int) -> None:
    envelopes = Envelopes()
    envelopes.feed(enclosed(b"{}")[:cut])
    assert envelopes.take() is None
    with pytest.raises(InvalidSpec, match="middle"):
        envelopes.finish()


@given(st.binary(max_size=300))
def test_no_bytes_hurt(data: bytes) -> None:
    envelopes = Envelopes()
    envelopes.feed(data)
    try:
        taken(envelopes)
        envelopes.finish()
    except (InvalidSpec, Exhausted, HostUnsupported):
        pass
