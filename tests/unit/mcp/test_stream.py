"""The conversation itself: revisions, lines that are none, the end of the input, a cut, many calls at once."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp_types import INVALID_REQUEST, PARSE_ERROR

from k8e.client import AsyncSandboxClient
from k8e.mcp import admission
from k8e.mcp.hosting import build_server
from k8e.mcp.scope import ClientScope
from k8e.mcp.stream import serve
from k8e.model import OwnerId
from tests.support.door import OpenDoor
from tests.support.inside import exists, gone
from tests.support.mcp_wire import INITIALIZE, Wire, wire

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def call(request_id: int | str, name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


async def until(found: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not found():
            await asyncio.sleep(0.01)


def sessions(door: OpenDoor) -> list[str]:
    return [each.session_id for each in door.engine.list_sessions(None)]


async def started(door: OpenDoor, where: Path) -> int:
    """The process that a call writes down."""
    await until(lambda: where.exists() and where.read_text().strip())
    return int(where.read_text())


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_revision_with_a_handshake_is_spoken_as_it_was_asked_for(lines: Wire, revision: str) -> None:
    assert (await lines.begin(revision))["protocolVersion"] == revision
    assert len((await lines.ask("tools/list"))["result"]["tools"]) == 12


async def test_an_unknown_revision_is_answered_with_the_newest_that_has_a_handshake(lines: Wire) -> None:
    assert (await lines.begin("1999-01-01"))["protocolVersion"] == "2025-11-25"


async def test_the_newest_revision_needs_no_handshake(lines: Wire) -> None:
    answer = await lines.ask("tools/list", _meta=MODERN)
    assert len(answer["result"]["tools"]) == 12
    found = await lines.ask("tools/call", 2, name="sandbox_run", arguments={"code": "echo hi"}, _meta=MODERN)
    assert found["result"]["structuredContent"]["stdout"] == "hi\n"


async def test_a_ping_is_answered_before_and_after_the_handshake(lines: Wire) -> None:
    assert (await lines.ask("ping"))["result"] == {}
    await lines.begin()
    assert (await lines.ask("ping"))["result"] == {}


async def test_a_line_that_is_no_message_gets_an_error_and_the_stream_goes_on(lines: Wire) -> None:
    await lines.begin()
    await lines.send(b"{", b"\xff\xfe", b"[" * 100_000, b'{"id": 5}', b"", b"  ")
    got = [await lines.receive() for _ in range(4)]
    assert [(each["id"], each["error"]["code"]) for each in got] == [
        (None, PARSE_ERROR),
        (None, PARSE_ERROR),
        (None, PARSE_ERROR),
        (5, INVALID_REQUEST),
    ]
    assert (await lines.ask("ping"))["result"] == {}


async def test_an_unknown_method_is_an_error_and_an_unknown_notification_is_nothing(lines: Wire) -> None:
    await lines.begin()
    await lines.send({"jsonrpc": "2.0", "method": "notifications/of/nobody"})
    assert (await lines.ask("no/such"))["error"]["code"] == -32601


async def test_one_line_and_the_end_of_the_input_give_one_answer_and_the_end(lines: Wire) -> None:
    await lines.send(INITIALIZE)
    await lines.end()
    (answer,) = await lines.rest()
    assert answer["result"]["serverInfo"]["name"] == "k8e-sandbox"


async def test_the_end_of_the_input_without_a_line_is_the_end(lines: Wire) -> None:
    await lines.end()
    assert await lines.rest() == []


async def test_what_is_in_flight_at_the_end_of_the_input_is_answered(lines: Wire, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    await lines.begin()
    waiting = f"while [ ! -e {gate} ]; do sleep 0.01; done; echo done"
    await lines.send(call(1, "sandbox_run", code=waiting), call(2, "sandbox_run", code="echo quick"))
    assert set(await lines.answers(2)) == {2}
    await lines.end()
    gate.touch()
    (answer,) = await lines.rest()
    assert (answer["id"], answer["result"]["structuredContent"]["stdout"]) == (1, "done\n")


async def test_a_question_to_a_client_whose_input_has_ended_does_not_hold_the_stream(lines: Wire) -> None:
    await lines.begin(elicitation={})
    session_id = (await lines.tool("sandbox_create_session"))["structuredContent"]["session_id"]
    await lines.send(call(1, "sandbox_confirm_action", session_id=session_id, action="deploy"))
    asked = await lines.receive()
    assert asked["method"] == "elicitation/create"
    await lines.end()
    (answer,) = await lines.rest()
    assert answer["result"]["structuredContent"]["status"] == "pending"


async def test_calls_run_at_once(lines: Wire, tmp_path: Path) -> None:
    """Each waits for the other: one at a time they would never end."""
    await lines.begin()
    await lines.tool("sandbox_run", code="true")
    meet = "touch {0}/{1}; while [ ! -e {0}/{2} ]; do sleep 0.01; done; echo {1}"
    await lines.send(
        call(1, "sandbox_run", code=meet.format(tmp_path, "a", "b")),
        call(2, "sandbox_run", code=meet.format(tmp_path, "b", "a")),
    )
    answers = await lines.answers(1, 2)
    assert [answers[each]["result"]["structuredContent"]["stdout"] for each in (1, 2)] == ["a\n", "b\n"]


async def test_a_cancelled_call_ends_its_command_and_is_not_answered(
    lines: Wire, door: OpenDoor, tmp_path: Path
) -> None:
    await lines.begin()
    await lines.send(call(7, "sandbox_run", code=f"echo $$ > {tmp_path}/pid; exec sleep 1000"))
    pid = await started(door, tmp_path / "pid")
    assert exists(pid)
    await lines.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
    await gone(pid)
    assert (await lines.ask("ping"))["id"] == 1
    await lines.end()
    assert await lines.rest() == []


async def test_a_cut_ends_what_runs_and_keeps_the_sandbox_for_the_grace(door: OpenDoor, tmp_path: Path) -> None:
    async with wire(door.target) as lines:
        await lines.begin()
        await lines.send(call(7, "sandbox_run", code=f"echo $$ > {tmp_path}/pid; exec sleep 1000"))
        pid = await started(door, tmp_path / "pid")
        lines.cut()
        await gone(pid)
    assert len(sessions(door)) == 1


async def test_an_id_is_free_as_soon_as_its_answer_has_arrived(door: OpenDoor) -> None:
    """Also while the server has not come back from sending it, as on a slow connection."""
    asked, arrived = asyncio.Queue[dict[str, Any]](), asyncio.Queue[dict[str, Any]]()
    may_return = asyncio.Event()
    may_return.set()

    async def lines() -> AsyncIterator[bytes]:
        while True:
            yield json.dumps(await asked.get()).encode()

    async def write(line: bytes) -> None:
        arrived.put_nowait(json.loads(line))
        await may_return.wait()

    async def answer() -> dict[str, Any]:
        return await asyncio.wait_for(arrived.get(), PATIENCE_S)

    async with AsyncSandboxClient(target=door.target) as client, asyncio.TaskGroup() as group:
        server = build_server(client, ClientScope(client, "somebody"))
        serving = group.create_task(serve(server, lines(), write), name="server")
        asked.put_nowait(INITIALIZE)
        assert (await answer())["id"] == INITIALIZE["id"]
        asked.put_nowait({"jsonrpc": "2.0", "method": "notifications/initialized"})
        may_return.clear()
        asked.put_nowait({"jsonrpc": "2.0", "id": 8, "method": "ping"})
        first = await answer()
        asked.put_nowait({"jsonrpc": "2.0", "id": 8, "method": "ping"})
        for _ in range(100):  # until it is read: it would be refused now
            await asyncio.sleep(0)
        may_return.set()
        assert [first, await answer()] == [{"jsonrpc": "2.0", "id": 8, "result": {}}] * 2
        serving.cancel()


async def test_an_id_that_is_used_twice_is_refused_without_touching_the_first(lines: Wire, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    await lines.begin()
    await lines.send(call(1, "sandbox_run", code=f"while [ ! -e {gate} ]; do sleep 0.01; done; echo first"))
    await lines.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    refused = await lines.receive()
    assert (refused["id"], refused["error"]["code"]) == (None, INVALID_REQUEST)
    gate.touch()
    assert (await lines.answers(1))[1]["result"]["structuredContent"]["stdout"] == "first\n"


async def test_more_calls_than_the_bound_are_refused_until_some_are_answered(
    lines: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "CALLS", 3)
    gate = tmp_path / "gate"
    await lines.begin()
    waiting = f"while [ ! -e {gate} ]; do sleep 0.01; done"
    await lines.send(*(call(number, "sandbox_run", code=waiting) for number in (1, 2, 3)))
    await lines.send(call(4, "sandbox_run", code="true"))
    assert "wait for some" in (await lines.answers(4))[4]["error"]["message"]
    gate.touch()
    await lines.answers(1, 2, 3)
    assert "result" in await lines.ask("ping", 5)


async def test_lines_that_wait_have_a_bound_together(
    lines: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "BYTES", 1_000)
    gate = tmp_path / "gate"
    await lines.begin()
    big = "#" * 2_000
    await lines.send(call(1, "sandbox_run", code=f"while [ ! -e {gate} ]; do sleep 0.01; done {big}"))
    await lines.send(call(2, "sandbox_run", code=f"true {big}"))
    assert "wait for some" in (await lines.answers(2))[2]["error"]["message"]
    gate.touch()
    await lines.answers(1)
    assert (await lines.tool("sandbox_run", 3, code=f"true {big}"))["isError"] is False


async def test_many_files_at_once_are_all_read(lines: Wire) -> None:
    """More than may be large at once: the rest wait for their turn, also beyond the end of the input."""
    await lines.begin()
    session_id = (await lines.tool("sandbox_create_session"))["structuredContent"]["session_id"]
    await lines.tool("sandbox_write_file", session_id=session_id, path="f", content="x" * 100_000)
    count = admission.LARGE * 5
    await lines.send(*(call(number, "sandbox_read_file", session_id=session_id, path="f") for number in range(count)))
    await lines.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": count - 1}})
    await lines.end()
    answered = [each["id"] for each in await lines.rest()]
    assert set(range(count - 1)) <= set(answered)
    assert len(answered) == len(set(answered))


async def test_a_batch_is_answered_in_one_line_where_the_revision_has_them(lines: Wire) -> None:
    await lines.begin("2025-03-26")
    note = {"jsonrpc": "2.0", "method": "notifications/of/nobody"}
    pings = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in (1, 2)]
    await lines.send([*pings, note, 5])
    answers = await lines.receive()
    assert {each["id"] for each in answers if "result" in each} == {1, 2}
    assert [each["error"]["code"] for each in answers if "error" in each] == [INVALID_REQUEST]
    await lines.send([note])
    assert (await lines.ask("ping", 9))["id"] == 9


async def test_the_bounds_hold_for_the_calls_of_one_batch_together(
    lines: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "CALLS", 2)
    await lines.begin("2025-03-26")
    gate = tmp_path / "gate"
    waiting = f"while [ ! -e {gate} ]; do sleep 0.01; done"
    await lines.send([call(number, "sandbox_run", code=waiting) for number in (1, 2, 3, 3)])
    await lines.send({"jsonrpc": "2.0", "id": 4, "method": "ping"})
    assert "wait for some" in (await lines.answers(4))[4]["error"]["message"]
    gate.touch()
    answers = await lines.receive()
    assert {each["id"] for each in answers if "result" in each} == {1, 2}
    assert [each["id"] for each in answers if "error" in each] == [3, 3]


async def test_a_batch_is_refused_where_the_revision_has_none(lines: Wire) -> None:
    await lines.begin("2025-06-18")
    await lines.send([{"jsonrpc": "2.0", "id": 1, "method": "ping"}])
    refused = await lines.receive()
    assert "no batches" in refused["error"]["message"]
    assert (await lines.ask("ping"))["result"] == {}


async def test_ten_megabytes_go_in_and_come_out(lines: Wire) -> None:
    await lines.begin()
    session_id = (await lines.tool("sandbox_create_session"))["structuredContent"]["session_id"]
    text = "0123456789abcdef" * (10 * 1024 * 1024 // 16)
    await lines.tool("sandbox_write_file", session_id=session_id, path="/workspace/big.txt", content=text)
    found = (await lines.ask("resources/read", uri=f"k8e://{session_id}/workspace/big.txt"))["result"]
    assert found["contents"][0]["text"] == text
    data = bytes(range(256)) * (10 * 1024 * 1024 // 256)
    coded = base64.b64encode(data).decode()
    await lines.tool(
        "sandbox_write_file", session_id=session_id, path="/workspace/big.bin", content=coded, encoding="base64"
    )
    found = (await lines.ask("resources/read", uri=f"k8e://{session_id}/workspace/big.bin"))["result"]
    assert base64.b64decode(found["contents"][0]["blob"]) == data


async def test_a_stream_s_lines_come_as_progress_and_again_at_the_end(lines: Wire) -> None:
    await lines.begin()
    session_id = (await lines.tool("sandbox_create_session"))["structuredContent"]["session_id"]
    asked = call(1, "sandbox_exec_stream", session_id=session_id, command="seq 10000", max_chars=100_000)
    asked["params"]["_meta"] = {"progressToken": "p"}
    await lines.send(asked)
    shown = []
    while (message := await lines.receive()).get("method") == "notifications/progress":
        assert message["params"]["progressToken"] == "p"
        shown.append(message["params"])
    whole = "".join(f"{number}\n" for number in range(1, 10001))
    assert "".join(each["message"] for each in shown) == whole
    assert [each["progress"] for each in shown] == sorted({each["progress"] for each in shown})
    assert message["result"]["content"][0]["text"] == whole


async def test_progress_comes_while_the_command_runs(lines: Wire, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    await lines.begin()
    session_id = (await lines.tool("sandbox_create_session"))["structuredContent"]["session_id"]
    command = f"echo first; while [ ! -e {gate} ]; do sleep 0.01; done; echo second"
    asked = call(1, "sandbox_exec_stream", session_id=session_id, command=command)
    asked["params"]["_meta"] = {"progressToken": 3}
    await lines.send(asked)
    assert (await lines.receive())["params"]["message"] == "first\n"
    gate.touch()
    assert (await lines.receive())["params"]["message"] == "second\n"
    assert (await lines.receive())["result"]["structuredContent"] == {"output": "first\nsecond\n", "exit_code": 0}


async def test_without_a_token_there_is_no_progress(lines: Wire) -> None:
    await lines.begin()
    session_id = (await lines.tool("sandbox_create_session"))["structuredContent"]["session_id"]
    await lines.send(call(1, "sandbox_exec_stream", session_id=session_id, command="echo hi"))
    assert (await lines.receive())["id"] == 1


async def test_a_slow_reader_slows_the_command_and_the_rest_waits_there(lines: Wire, tmp_path: Path) -> None:
    """What nobody reads stays where it is written: the command cannot run ahead of its reader by more than buffers."""
    await lines.begin()
    session_id = (await lines.tool("sandbox_create_session"))["structuredContent"]["session_id"]
    mark = tmp_path / "done"
    command = f"head -c 16000000 /dev/zero | tr '\\0' 'x'; touch {mark}"
    asked = call(1, "sandbox_exec_stream", session_id=session_id, command=command)
    asked["params"]["_meta"] = {"progressToken": "p"}
    await lines.send(asked)
    first = await lines.receive()
    assert first["method"] == "notifications/progress"
    assert (await stays_away(mark)) is True
    while (message := await lines.receive()).get("method"):
        pass
    assert mark.exists()
    assert message["result"]["structuredContent"]["truncated"] is True
    assert len(message["result"]["content"][0]["text"]) < 25_000


async def stays_away(path: Path) -> bool:
    """Looked at for long enough that a command which nobody holds back would have ended."""
    for _ in range(50):
        if path.exists():
            return False
        await asyncio.sleep(0.01)
    return True


async def test_when_the_server_leaves_an_idle_client_is_told_at_once(door: OpenDoor, lines: Wire) -> None:
    await lines.begin()
    door.agents.leave()
    with pytest.raises(Exception, match="server is stopping"):
        await lines.rest()


async def test_when_the_server_leaves_a_call_is_answered_first(door: OpenDoor, lines: Wire, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    await lines.begin()
    waiting = f"touch {tmp_path}/begun; while [ ! -e {gate} ]; do sleep 0.01; done; echo done"
    await lines.send(call(1, "sandbox_run", code=waiting))
    await until((tmp_path / "begun").exists)
    door.agents.leave()
    gate.touch()
    assert (await lines.answers(1))[1]["result"]["structuredContent"]["stdout"] == "done\n"
    with pytest.raises(Exception, match="server is stopping"):
        await lines.rest()
    assert door.engine.list_sessions(OwnerId(f"uid:{os.geteuid()}"))
