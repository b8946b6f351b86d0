"""What a relay remembers of a conversation, and how it takes its input apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.cli.mcp_lines import Lines, TooLong
from k8e.cli.mcp_record import LOST, Record, id_of_long

INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sandbox_run"}}
LIST = {"jsonrpc": "2.0", "id": "two", "method": "tools/list"}
QUESTION = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {}}


def line(message: object) -> bytes:
    return json.dumps(message).encode()


def answer(number: object, **result: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "result": result}


def read(lines: list[bytes]) -> list[Any]:
    return [json.loads(each) for each in lines]


@pytest.fixture
def record() -> Record:
    """A conversation that has had its handshake."""
    record = Record()
    assert record.said(line(INITIALIZE)) == line(INITIALIZE)
    assert record.heard(line(answer(0))) == line(answer(0))
    assert record.said(line(INITIALIZED)) == line(INITIALIZED)
    return record


def test_what_has_its_answer_is_not_told_again(record: Record) -> None:
    waits = [record.is_waiting]
    record.said(line(CALL))
    waits.append(record.is_waiting)
    assert record.heard(line(answer(1))) == line(answer(1))
    assert [*waits, record.is_waiting] == [False, True, False]
    assert record.lost() == []


def test_a_call_that_loses_its_server_is_told_so_as_its_result(record: Record) -> None:
    record.said(line(CALL))
    (told,) = read(record.lost())
    assert told["id"] == 1
    assert told["result"] == {
        "content": [{"type": "text", "text": LOST}],
        "isError": True,
        "resultType": "complete",
    }
    assert record.lost() == []


def test_another_method_gets_an_error_of_the_protocol(record: Record) -> None:
    record.said(line({**CALL, "method": "resources/subscribe"}))
    (told,) = read(record.lost())
    assert (told["id"], told["error"]["code"], told["error"]["message"]) == (1, -32603, LOST)


def test_another_server_hears_the_handshake_again_and_the_client_does_not(record: Record) -> None:
    record.lost()
    assert read(record.again()) == [INITIALIZE, INITIALIZED]
    assert record.heard(line(answer(0))) is None
    assert record.heard(line(answer(0))) == line(answer(0))  # only once: what comes later is not a repetition


def test_a_question_that_changes_nothing_is_asked_again_instead(record: Record) -> None:
    record.said(line(LIST))
    assert record.lost() == []
    assert read(record.again()) == [INITIALIZE, INITIALIZED, LIST]
    record.heard(line(answer(0)))
    assert record.heard(line(answer("two", tools=[]))) == line(answer("two", tools=[]))


def test_a_handshake_without_its_answer_is_asked_again_and_heard() -> None:
    record = Record()
    record.said(line(INITIALIZE))
    assert record.lost() == []
    assert read(record.again()) == [INITIALIZE]
    assert record.heard(line(answer(0))) == line(answer(0))


def test_without_a_handshake_nothing_is_repeated() -> None:
    record = Record()
    record.said(line(CALL))
    assert len(record.lost()) == 1
    assert record.again() == []


def test_for_good_everything_is_told() -> None:
    record = Record()
    record.said(line(INITIALIZE))
    record.said(line(LIST))
    told = read(record.lost("no way", for_good=True))
    assert [(each["id"], each["error"]["message"]) for each in told] == [(0, "no way"), ("two", "no way")]
    assert not record.is_waiting


def test_a_cancelled_call_waits_for_nothing(record: Record) -> None:
    record.said(line(CALL))
    record.said(line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}))
    assert record.lost() == []


def test_those_who_leave_cancel_what_runs(record: Record) -> None:
    record.said(line(CALL))
    (cancelled,) = read(record.cancellations())
    assert (cancelled["method"], cancelled["params"]["requestId"]) == ("notifications/cancelled", 1)


def test_a_batch_is_several_calls(record: Record) -> None:
    record.said(line([CALL, {**CALL, "id": 2}, {**CALL, "id": 3}]))
    record.heard(line([answer(2)]))
    assert [each["id"] for each in read(record.lost())] == [1, 3]


def test_the_servers_question_is_answered_to_the_server_that_asked(record: Record) -> None:
    assert record.heard(line(QUESTION)) == line(QUESTION)
    assert record.said(line(answer(1, action="accept"))) == line(answer(1, action="accept"))


def test_an_answer_never_reaches_a_server_that_did_not_ask(record: Record) -> None:
    record.heard(line(QUESTION))
    (withdrawn,) = read(record.lost())
    assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", 1)
    # The next server counts from the beginning, and so asks something else by the same number.
    shown = json.loads(record.heard(line(QUESTION)) or b"")
    assert shown == {**QUESTION, "id": "1:1"}
    assert record.said(line(answer(1, action="accept"))) is None
    assert json.loads(record.said(line(answer("1:1", action="accept"))) or b"") == answer(1, action="accept")
    assert record.said(line(answer("1:1", action="accept"))) is None


@pytest.mark.parametrize("text", [b"{broken", b"\xff\xfe", b"[" * 100_000, b"7", b'"text"', b"null"])
def test_what_is_no_message_is_for_the_server_to_judge(record: Record, text: bytes) -> None:
    assert record.said(text) == text
    assert record.heard(text) == text
    assert record.lost() == []


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"id": 1}},
        {"method": "tools/call", "params": {"id": 1}, "jsonrpc": "2.0", "id": 7},
        {"params": {"id": 1}, "id": 7, "jsonrpc": "2.0", "method": "tools/call"},
    ],
)
def test_the_id_of_a_long_line_is_found_at_its_ends(message: dict[str, object]) -> None:
    assert id_of_long(line(message), line(message)) == 7


@pytest.mark.parametrize("text", [b"", b"{", b'{"params":{"id":1},', b'"id": 3 and more', b'{"params":{"id":1}}'])
def test_an_id_that_is_not_at_an_end_is_not_guessed(text: bytes) -> None:
    assert id_of_long(text, text) is None


@given(st.lists(st.binary(max_size=40)), st.integers(min_value=1, max_value=60))
def test_lines_come_out_as_they_went_in_however_they_are_cut(texts: list[bytes], size: int) -> None:
    texts = [text.replace(b"\n", b"") for text in texts]
    data = b"".join(text + b"\n" for text in texts)
    lines = Lines(limit=64)
    found = [each for at in range(0, len(data), size) for each in lines.feed(data[at : at + size])]
    assert [*found, *lines.finish()] == [text for text in texts if text.strip()]


def test_a_line_that_is_too_long_is_known_by_its_ends_and_the_next_one_is_whole() -> None:
    lines = Lines(limit=10)
    assert lines.feed(b"x" * 9_000) == []
    found = lines.feed(b"y" * 9_000 + b"\nnext\nlast")
    assert found == [TooLong(b"x" * 4096, b"y" * 4096), b"next"]
    assert lines.finish() == [b"last"]


def test_a_line_may_be_exactly_as_long_as_it_may() -> None:
    lines = Lines(limit=10)
    assert lines.feed(b"x" * 10 + b"\n") == [b"x" * 10]
    (long,) = lines.feed(b"x" * 11 + b"\n")
    assert isinstance(long, TooLong)
