"""Who runs now, who waits, who is refused."""

from __future__ import annotations

import pytest
from mcp_types import JSONRPCRequest

from k8e.mcp.admission import BYTES, CALLS, LARGE, STREAMS, Admission


def tool(request_id: int, name: str) -> JSONRPCRequest:
    return JSONRPCRequest(jsonrpc="2.0", id=request_id, method="tools/call", params={"name": name})


def read(request_id: int) -> JSONRPCRequest:
    return tool(request_id, "sandbox_read_file")


def test_calls_run_at_once_up_to_the_bound() -> None:
    room = Admission()
    for number in range(CALLS):
        assert not room.is_busy(tool(number, "sandbox_run"), 10)
        assert room.begin(tool(number, "sandbox_run"), 10)
    assert room.is_busy(tool(CALLS, "sandbox_run"), 10)
    assert list(room.end(0)) == []
    assert not room.is_busy(tool(CALLS, "sandbox_run"), 10)


def test_one_line_may_be_as_large_as_it_likes_and_not_two() -> None:
    room = Admission()
    assert not room.is_busy(tool(1, "sandbox_run"), BYTES + 1)
    room.begin(tool(1, "sandbox_run"), BYTES + 1)
    assert room.is_busy(tool(2, "sandbox_run"), 1)
    list(room.end(1))
    assert room.is_idle


def test_answers_that_may_be_large_come_a_few_at_a_time_in_their_order() -> None:
    room = Admission()
    begun = [room.begin(read(number), 1) for number in range(LARGE + 2)]
    assert begun == [True] * LARGE + [False] * 2
    assert room.begin(tool(100, "sandbox_run"), 1)
    assert [each.id for each in room.end(0)] == [LARGE]
    assert [each.id for each in room.end(100)] == []
    assert [each.id for each in room.end(1)] == [LARGE + 1]


def test_a_resource_is_as_large_as_a_file() -> None:
    room = Admission()
    for number in range(LARGE):
        room.begin(read(number), 1)
    asked = JSONRPCRequest(jsonrpc="2.0", id="r", method="resources/read", params={"uri": "k8e://s/workspace/f"})
    assert not room.begin(asked, 1)


def test_a_call_that_waits_for_its_turn_can_be_forgotten_and_one_that_runs_cannot() -> None:
    room = Admission()
    for number in range(LARGE + 1):
        room.begin(read(number), 1)
    assert not room.forget(0)
    assert room.forget(LARGE)
    assert not room.knows(LARGE)
    assert [list(room.end(number)) for number in range(LARGE)] == [[]] * LARGE
    assert room.is_idle


def test_commands_whose_output_is_kept_have_a_bound_of_their_own() -> None:
    room = Admission()
    for number in range(STREAMS):
        assert not room.is_busy(tool(number, "sandbox_exec_stream"), 1)
        room.begin(tool(number, "sandbox_exec_stream"), 1)
    assert room.is_busy(tool(99, "sandbox_exec_stream"), 1)
    assert not room.is_busy(tool(99, "sandbox_exec"), 1)


@pytest.mark.parametrize(
    ("max_chars", "is_bounded"), [(25_001, True), (1e9, True), (25_000, False), ("x", False), (None, False)]
)
def test_so_have_those_that_ask_for_a_longer_answer(max_chars: object, is_bounded: bool) -> None:
    room = Admission()
    arguments = {"code": "true", "max_chars": max_chars}
    params = {"name": "sandbox_run", "arguments": arguments}
    for number in range(STREAMS):
        room.begin(JSONRPCRequest(jsonrpc="2.0", id=number, method="tools/call", params=params), 1)
    asked = JSONRPCRequest(jsonrpc="2.0", id=99, method="tools/call", params=params)
    assert room.is_busy(asked, 1) is is_bounded


@pytest.mark.parametrize("params", [None, {}, {"name": 5}, {"name": None}, {"name": "sandbox_run", "arguments": 5}])
def test_a_call_without_a_tool_is_like_any(params: dict[str, object] | None) -> None:
    room = Admission()
    assert room.begin(JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params=params), 1)
