"""What is a message and what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import INVALID_REQUEST, PARSE_ERROR, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from k8e.mcp.lines import BATCH, Batch, Refused, encoded, parsed

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def test_a_request_a_notification_and_an_answer_are_messages() -> None:
    assert parsed(b'{"jsonrpc": "2.0", "id": "a", "method": "ping"}') == JSONRPCRequest(
        jsonrpc="2.0", id="a", method="ping"
    )
    assert parsed(b'{"jsonrpc": "2.0", "method": "m"}') == JSONRPCNotification(jsonrpc="2.0", method="m")
    assert isinstance(parsed(b'{"jsonrpc": "2.0", "id": 1, "result": {}}'), JSONRPCResponse)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"",
        b"ping",
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"a": NaN}',
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    ],
    ids=["open", "empty", "word", "not UTF-8", "half a character", "no number", "deep list", "deep object"],
)
def test_what_is_no_json_is_a_parse_error_of_nobody(line: bytes) -> None:
    found = parsed(line)
    assert isinstance(found, Refused)
    assert (found.answer.id, found.answer.error.code) == (None, PARSE_ERROR)


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b"null", None),
        (b"3", None),
        (b"{}", None),
        (b'{"id": 7, "method": "ping"}', 7),
        (b'{"jsonrpc": "1.0", "id": "x", "method": "ping"}', "x"),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 5}', 7),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "m", "params": [1]}', 7),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', None),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', None),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', None),
        (b"[]", None),
    ],
)
def test_what_is_json_but_no_message_is_an_invalid_request(line: bytes, request_id: object) -> None:
    found = parsed(line)
    assert isinstance(found, Refused)
    assert (found.answer.id, found.answer.error.code) == (request_id, INVALID_REQUEST)


def test_a_batch_is_taken_apart_and_has_a_bound() -> None:
    found = parsed(json.dumps([PING, 3]).encode())
    assert isinstance(found, Batch)
    assert [type(item) for item in found.items] == [JSONRPCRequest, Refused]
    assert isinstance(parsed(json.dumps([PING] * BATCH).encode()), Batch)
    assert isinstance(parsed(json.dumps([PING] * (BATCH + 1)).encode()), Refused)


def test_an_answer_that_no_utf8_can_carry_becomes_an_error_with_its_id() -> None:
    whole = JSONRPCResponse(jsonrpc="2.0", id=1, result={"text": "fine"})
    assert json.loads(encoded(whole))["result"] == {"text": "fine"}
    broken = JSONRPCResponse(jsonrpc="2.0", id=1, result={"text": "\udcff"})
    told = json.loads(encoded(broken))
    assert (told["id"], "error" in told) == (1, True)


@given(st.binary(max_size=200))
def test_no_line_raises(line: bytes) -> None:
    parsed(line)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"]), inner, max_size=5),
    max_leaves=10,
)  # fmt: skip


@given(json_values)
def test_no_json_raises(value: object) -> None:
    parsed(json.dumps(value).encode())
