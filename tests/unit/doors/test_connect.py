"""The JSON door over a real unix socket, driven by bare bytes as any client's would be."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import MethodDescriptor

from k8e import errors
from k8e._proto import sandbox_pb2 as pb
from k8e.doors.connect.errors import STATUSES, failure_for
from k8e.doors.service import SERVICE
from k8e.doors.service.call import Call
from tests.support.connect import ConnectDoor, Wire, connect_door, envelope
from tests.support.inside import gone, outside, running

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
DEADLINES_MS = ("500", "5000", "50000")
"""One after the other until a command has begun within it: how long that takes is the machine's affair."""


@pytest.fixture
async def door(data_dir: Path) -> AsyncIterator[ConnectDoor]:
    async with connect_door(data_dir) as door:
        yield door


@pytest.fixture
async def wire(door: ConnectDoor) -> AsyncIterator[Wire]:
    async with door.wire() as wire:
        yield wire


@pytest.fixture
async def session_id(wire: Wire) -> str:
    return str((await wire.ask("CreateSession")).json["session_id"])


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_one_connection_carries_one_call_after_another(wire: Wire, session_id: str) -> None:
    for number in range(3):
        reply = await wire.ask("Exec", {"session_id": session_id, "command": f"echo out; echo err >&2; exit {number}"})
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert (reply.json["stdout"], reply.json["stderr"], reply.json["exit_code"]) == ("out\n", "err\n", number)


async def test_protobuf_is_served_beside_json(wire: Wire, session_id: str) -> None:
    request = pb.ExecRequest(session_id=session_id, argv=[b"printf", rb"\377"])
    reply = await wire.ask("Exec", request.SerializeToString(), kind="application/proto")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/proto")
    assert pb.ExecResponse.FromString(reply.body).stdout_bytes == b"\xff"


async def test_labels_are_json_too(wire: Wire, session_id: str) -> None:
    changed = await wire.ask("UpdateLabels", {"session_id": session_id, "set": {"example.com/task": "42"}})
    assert changed.json["labels"] == {"example.com/task": "42"}
    for wanted, found in (
        ("example.com/task=42", [session_id]),
        ("example.com/task=43", []),
        ("example.com/task", [session_id]),
    ):
        listed = await wire.ask("ListSessions", {"labels": [wanted]})
        assert [each["session_id"] for each in listed.json.get("sessions", [])] == found
    refused = await wire.ask("ListSessions", {"labels": ["!task"]})
    assert (refused.status, refused.json["code"]) == (400, "invalid_argument")
    assert refused.json["message"].startswith("labels: '!task' is no label's key")


async def test_a_protobuf_stream_is_served_beside_json(wire: Wire, session_id: str) -> None:
    request = envelope(pb.ExecRequest(session_id=session_id, command="echo hi").SerializeToString())
    reply = await wire.ask("ExecStream", request, kind="application/connect+proto")
    (flags, data), (end, _) = reply.envelopes
    assert (flags, pb.ExecStreamResponse.FromString(data).chunk, end) == (0, "hi\n", 2)


async def test_a_stream_ends_with_the_exit_code_beside_it(wire: Wire, session_id: str) -> None:
    reply = await wire.ask_stream("ExecStream", {"session_id": session_id, "command": "echo hi; exit 3"})
    assert (reply.status, reply.headers["content-type"]) == (200, "application/connect+json")
    assert reply.messages == [{"chunk": "hi\n"}]
    assert "error" not in reply.end
    assert (reply.end["metadata"]["k8e-exit-code"], reply.end["metadata"]["k8e-status"]) == (["3"], ["completed"])


async def test_both_sides_of_one_exchange_talk_at_once(wire: Wire, session_id: str) -> None:
    await wire.open_stream("ExecAttach")
    await wire.send({"start": {"session_id": session_id, "command": "cat; exit 5"}, "with_stdin": True})
    status, _ = await wire.head()
    assert status == 200
    assert (await wire.message())["started"]["session_id"] == session_id
    for text in (b"one", b"two\xff"):  # each answered before the next is sent
        await wire.send({"stdin": b64(text)})
        chunk = (await wire.message())["chunk"]
        assert (chunk["channel"], base64.b64decode(chunk["data"])) == ("OUTPUT_CHANNEL_STDOUT", text)
    await wire.finish()
    assert (await wire.message())["exit"]["exit_code"] == 5
    assert await wire.chunk() == envelope({}, flags=2)
    assert await wire.chunk() == b""
    assert (await wire.ask("WhoAmI")).status == 200  # and the connection goes on


async def test_a_background_run_is_given_input_in_json(wire: Wire, session_id: str) -> None:
    asked = {"session_id": session_id, "command": "cat; echo end", "background": True, "with_stdin": True}
    run_id = (await wire.ask("Exec", asked)).json["run_id"]
    where = {"session_id": session_id, "exec_id": run_id}
    (listed,) = (await wire.ask("ListExecs", {"session_id": session_id})).json["execs"]
    assert (listed["exec_id"], listed["takes_input"], listed["is_kept"]) == (run_id, True, True)
    assert (await wire.ask("WriteInput", where | {"append": True, "data": b64(b"in\n")})).json["taken"]
    assert (await wire.ask("WriteInput", where | {"append": True, "eof": True})).json["closed"]
    reply = await wire.ask_stream("AttachRun", {"run_id": run_id})
    chunks = [base64.b64decode(each["chunk"]["data"]) for each in reply.messages if "chunk" in each]
    assert b"".join(chunks) == b"in\nend\n"


async def test_an_envelope_may_be_cut_anywhere(wire: Wire, session_id: str) -> None:
    await wire.open_stream("ExecAttach")
    start = {"start": {"session_id": session_id, "command": "cat"}, "with_stdin": True}
    for byte in envelope(start) + envelope({"stdin": b64(b"x")}):
        await wire.raw(b"1\r\n%c\r\n" % byte)
    await wire.finish()
    reply = await wire.reply()
    assert [next(iter(message)) for message in reply.messages] == ["started", "chunk", "exit"]


async def test_files_of_any_name_and_content_come_back_as_they_were(wire: Wire, session_id: str) -> None:
    name, content = b64(b"/workspace/a b%#\n\xff"), bytes(range(256)) * 3000
    pieces = [{"data": b64(content[at : at + 100_000])} for at in range(0, len(content), 100_000)]
    written = await wire.ask_stream("WriteStream", {"open": {"session_id": session_id, "path_bytes": name}}, *pieces)
    assert [int(message["size"]) for message in written.messages] == [len(content)]
    read = await wire.ask_stream("ReadStream", {"session_id": session_id, "path_bytes": name})
    assert b"".join(base64.b64decode(message["data"]) for message in read.messages) == content


@pytest.mark.parametrize("suffix", ["json", "proto"])
@pytest.mark.parametrize("method", list(SERVICE.methods), ids=lambda method: str(method.name))
async def test_every_rpc_of_the_descriptor_answers(wire: Wire, method: MethodDescriptor, suffix: str) -> None:
    streamed = method.client_streaming or method.server_streaming
    empty = b"{}" if suffix == "json" else b""
    reply = await wire.ask(
        str(method.name),
        envelope(empty) if streamed else empty,
        kind=f"application/{'connect+' if streamed else ''}{suffix}",
        connect_timeout_ms="60000",
    )
    told = (reply.end.get("error") if streamed else reply.json if reply.status != 200 else None) or {"code": ""}
    assert reply.headers["content-type"].startswith("application/")
    assert told["code"] in {"", "invalid_argument", "not_found", "unimplemented", "unauthenticated"}
    assert reply.status == 200 or not streamed


@pytest.mark.parametrize("kind", [each for each in vars(errors).values() if isinstance(each, type)])
def test_every_error_of_ours_has_a_word_and_a_status_of_the_protocol(kind: type[errors.K8eError]) -> None:
    failure = failure_for(kind("text", "name") if kind is errors.NotFound else kind("text"))
    assert failure.status == STATUSES[failure.code]
    assert "text" in failure.message
    assert dict(failure.metadata)["k8e-error"]


async def test_an_error_says_what_it_is_in_words_of_the_protocol_and_of_ours(wire: Wire) -> None:
    reply = await wire.ask("Exec", {"session_id": "sess-x", "command": "true"})
    assert (reply.status, reply.headers["k8e-error"]) == (404, "not_found")
    assert reply.json == {"code": "not_found", "message": "session sess-x not found"}


async def test_an_error_of_a_stream_comes_at_its_end(wire: Wire) -> None:
    reply = await wire.ask_stream("ExecStream", {"session_id": "sess-x", "command": "true"})
    assert (reply.status, reply.messages) == (200, [])
    assert reply.end == {
        "error": {"code": "not_found", "message": "session sess-x not found"},
        "metadata": {"k8e-error": ["not_found"]},
    }


async def test_a_bad_field_is_refused_by_its_name(wire: Wire) -> None:
    for request in ({"session_id": "s", "comand": "true"}, {"session_id": "s", "command": "a\0b"}):
        reply = await wire.ask("Exec", request)
        assert (reply.status, reply.json["code"]) == (400, "invalid_argument")
        assert reply.json["message"].startswith(("comand: ", "command: "))


async def test_when_to_come_again_is_told_beside_the_error(data_dir: Path) -> None:
    @contextlib.contextmanager
    def busy(name: str, call: Call, request: object) -> Iterator[None]:
        if name:
            raise errors.Exhausted("too fast", retry_after_s=1.5)
        yield

    async with connect_door(data_dir, steps=[busy]) as door, door.wire() as wire:
        reply = await wire.ask("WhoAmI")
        assert (reply.status, reply.headers["k8e-error"], reply.headers["k8e-retry-after-s"]) == (
            429,
            "exhausted",
            "1.500",
        )
        streamed = await wire.ask_stream("ExecStream", {})
        assert streamed.end["metadata"] == {"k8e-error": ["exhausted"], "k8e-retry-after-s": ["1.500"]}


async def test_what_follows_a_single_message_is_in_its_headers_and_cannot_break_them(data_dir: Path) -> None:
    @contextlib.contextmanager
    def noting(name: str, call: Call, request: object) -> Iterator[None]:
        call.trail(noted=True, odd="a\r\nx: y\u00e4")
        yield

    async with connect_door(data_dir, steps=[noting]) as door, door.wire() as wire:
        reply = await wire.ask("WhoAmI")
        assert (reply.headers["trailer-k8e-noted"], reply.headers["trailer-k8e-odd"]) == ("true", "a??x: y?")


async def test_a_bug_is_told_as_such_and_nothing_of_it(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    @contextlib.contextmanager
    def broken(name: str, call: Call, request: object) -> Iterator[None]:
        if name:
            raise ZeroDivisionError("a secret")
        yield

    async with connect_door(data_dir, steps=[broken]) as door, door.wire() as wire:
        reply = await wire.ask("WhoAmI")
        assert (reply.status, reply.json) == (500, {"code": "internal", "message": "internal error"})
        assert (await wire.ask_stream("ExecStream", {})).end["error"]["code"] == "internal"
    assert "call failed unexpectedly" in caplog.text


@pytest.mark.parametrize("rpc", ["Exec", "ExecStream", "ExecAttach"])
async def test_a_deadline_stops_the_command_inside(wire: Wire, session_id: str, data_dir: Path, rpc: str) -> None:
    for deadline in DEADLINES_MS:
        pid_file = data_dir / deadline
        request = {"session_id": session_id, "command": f"echo $$ > {pid_file}; exec sleep 600"}
        match rpc:
            case "Exec":
                reply = await wire.ask("Exec", request, connect_timeout_ms=deadline)
            case "ExecStream":
                reply = await wire.ask_stream("ExecStream", request, connect_timeout_ms=deadline)
            case _:
                reply = await wire.ask_stream("ExecAttach", {"start": request}, connect_timeout_ms=deadline)
        told = reply.json if rpc == "Exec" else reply.end["error"]
        assert (reply.status, told["code"]) == (504 if rpc == "Exec" else 200, "deadline_exceeded")
        if pid_file.exists() and (pid := pid_file.read_text().strip()):
            return await gone(int(pid))
    pytest.fail("the command never began")


@pytest.mark.parametrize("rpc", ["Exec", "ExecStream", "ExecAttach"])
async def test_a_caller_that_goes_away_stops_its_command(
    door: ConnectDoor, session_id: str, data_dir: Path, rpc: str
) -> None:
    request = {"session_id": session_id, "command": f"echo $$ > {data_dir}/pid; exec sleep 600"}
    async with door.wire() as wire:
        match rpc:
            case "Exec":
                await wire.begin(rpc, "application/json", json.dumps(request).encode())
            case "ExecStream":
                await wire.begin(rpc, "application/connect+json", envelope(request))
            case _:
                await wire.open_stream(rpc)
                await wire.send({"start": request})
        pid = await running(data_dir / "pid")
    await gone(pid)


async def test_a_caller_that_goes_away_while_nobody_reads_it_stops_its_command(
    door: ConnectDoor, session_id: str, data_dir: Path
) -> None:
    request = {"session_id": session_id, "command": f"echo $$ > {data_dir}/pid; exec sleep 600"}
    async with door.wire() as wire:
        await wire.open_stream("ExecAttach")
        await wire.send({"start": request, "with_stdin": True})
        pid = await running(data_dir / "pid")
        await wire.flood(8 * 1024 * 1024)
        assert wire.unsent > 1024 * 1024  # the control: nobody reads any more
        wire.writer.transport.abort()
    await gone(pid)


async def test_a_command_that_does_not_read_holds_its_caller_back(wire: Wire, session_id: str, data_dir: Path) -> None:
    size, gate = 32 * 1024 * 1024, data_dir / "gate"
    command = f"until [ -e {gate} ]; do sleep 0.01; done; exec wc -c"
    await wire.open_stream("ExecAttach")
    await wire.send({"start": {"session_id": session_id, "command": command}, "with_stdin": True})
    await wire.head()
    await wire.message()
    await wire.flood(size)
    assert wire.unsent > size - 8 * 1024 * 1024
    gate.touch()  # the control: once it reads, everything arrives
    await wire.finish()
    assert int(base64.b64decode((await wire.message())["chunk"]["data"])) > size // 2


async def test_a_caller_that_does_not_read_holds_its_command_back(wire: Wire, session_id: str, data_dir: Path) -> None:
    size = 32 * 1024 * 1024
    command = f"echo $$ > {data_dir}/pid; exec head -c {size} /dev/zero"
    start = {"start": {"session_id": session_id, "command": command}}
    await wire.begin("ExecAttach", "application/connect+json", envelope(start))
    pid = await running(data_dir / "pid")
    assert await settled(pid) < 8 * 1024 * 1024
    reply = await wire.reply()  # the control: once it is read, everything arrives
    chunks = [message["chunk"] for message in reply.messages if "chunk" in message]
    assert sum(len(base64.b64decode(chunk["data"])) for chunk in chunks) == size


async def settled(pid: int) -> int:
    """How many bytes a process has written, once it writes no more for a while."""
    seen, now = -1, 0
    while seen != now or not now:
        await asyncio.sleep(0.2)
        seen, now = now, int(Path(f"/proc/{outside(pid)}/io").read_text().split()[3])
    return now


async def test_a_caller_may_ask_before_it_sends_its_body(wire: Wire) -> None:
    body = b'{"session_id":"s","command":"true"}'
    await wire.begin("Exec", "application/json", b"", expect="100-continue", content_length=str(len(body)))
    assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await wire.raw(body)
    assert (await wire.reply()).status == 404


async def test_a_caller_may_ask_before_it_streams(wire: Wire, session_id: str) -> None:
    await wire.open_stream("ExecAttach", expect="100-continue")
    assert (await wire.head())[0] == 100
    await wire.send({"start": {"session_id": session_id, "command": "echo hi"}})
    await wire.finish()
    assert [next(iter(message)) for message in (await wire.reply()).messages] == ["started", "chunk", "exit"]
