"""Bytes that are no message are refused with the name of the field that spoils them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service.decoding import parsed
from k8e.errors import InvalidSpec

BAD = b"\xff"


def test_a_message_is_what_it_was() -> None:
    message = pb.ExecRequest(session_id="ä", argv=[b"\xff"], env={"K": b"\xff"}, timeout_s=1.5)
    assert parsed(pb.ExecRequest, message.SerializeToString()) == message
    assert parsed(pb.ExecRequest, b"") == pb.ExecRequest()


@pytest.mark.parametrize(
    ("kind", "data", "field"),
    [
        (pb.ExecRequest, b"\x0a\x01" + BAD, "session_id"),
        (pb.ExecRequest, pb.ExecRequest(session_id="good").SerializeToString() + b"\x32\x01" + BAD, "language"),
        (pb.CreateSessionRequest, b"\x2a\x03\x0a\x01" + BAD, "env"),
        (pb.CreateSessionRequest, b"\x2a\x06\x0a\x01K\x12\x01" + BAD, "env"),
        (pb.CreateSessionRequest, b"\x32\x03\x12\x01" + BAD, "secret_refs.key"),
        (pb.ExecInput, b"\x0a\x03\x0a\x01" + BAD, "start.session_id"),
        (pb.CreateSessionRequest, b"\x1a\x01a\x1a\x01" + BAD, "allowed_hosts"),
    ],
)
def test_text_that_is_not_utf8_is_named(kind: type[pb.ExecRequest], data: bytes, field: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parsed(kind, data)
    assert caught.value.field == field
    assert "UTF-8" in str(caught.value)


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05a", b"\x0f", b"\xff" * 11, b"\x09\x01", b"\x0d\x01", b"\x07"])
def test_bytes_that_are_cut_off_or_unknown_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidSpec, match="ExecRequest"):
        parsed(pb.ExecRequest, data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_refusal(data: bytes) -> None:
    for kind in (pb.ExecRequest, pb.CreateSessionRequest, pb.ExecInput):
        with contextlib.suppress(InvalidSpec):
            assert isinstance(parsed(kind, data), kind)
