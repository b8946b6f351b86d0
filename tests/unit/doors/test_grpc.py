"""The gRPC door over real TLS, driven by bare stubs as any client's would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import grpc
import pytest
from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client.channels import open_channel
from k8e.doors.service import SERVICE
from tests.support.door import OpenDoor, open_door
from tests.support.inside import gone, running

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
DEADLINES_S = (0.5, 5.0, 50.0)
"""One after the other until a command has begun within it: how long that takes is the machine's affair."""


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[OpenDoor]:
    async with open_door(tmp_path) as door:
        yield door


@pytest.fixture
async def stub(door: OpenDoor) -> AsyncIterator[SandboxStub]:
    async with open_channel(door.target) as channel:
        yield SandboxStub(channel)


@pytest.fixture
async def session_id(stub: SandboxStub) -> str:
    return (await stub.CreateSession(pb.CreateSessionRequest())).session_id


async def refusal(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_a_command_answers_with_its_streams_and_exit_code(stub: SandboxStub, session_id: str) -> None:
    answer = await stub.Exec(pb.ExecRequest(session_id=session_id, command="echo out; echo err >&2; exit 7"))
    assert (answer.stdout, answer.stderr, answer.exit_code) == ("out\n", "err\n", 7)
    assert (answer.status, answer.session_id, answer.truncated) == ("completed", session_id, False)


async def test_a_background_run_reads_what_is_written_to_it_until_that_ends(stub: SandboxStub, session_id: str) -> None:
    asked = pb.ExecRequest(session_id=session_id, command="cat; echo end", background=True)
    without = (await stub.Exec(asked)).run_id
    asked.with_stdin = True
    run_id = (await stub.Exec(asked)).run_id
    end = [each async for each in stub.AttachRun(pb.AttachRunRequest(run_id=without))]
    assert [each.chunk.data for each in end[:-1]] == [b"end\n"], "the control: it reads nothing"
    writing = pb.WriteInputRequest(session_id=session_id, exec_id=run_id, data=b"in\n")
    for _ in range(2):  # the second time as after a lost answer
        taken = await stub.WriteInput(writing)
        assert (taken.offset, taken.closed) == (3, False)
    assert (await stub.PollRun(pb.PollRunRequest(run_id=run_id))).status == "running"
    assert (
        await stub.WriteInput(pb.WriteInputRequest(session_id=session_id, exec_id=run_id, offset=3, eof=True))
    ).closed
    said = [each async for each in stub.AttachRun(pb.AttachRunRequest(run_id=run_id))]
    assert b"".join(each.chunk.data for each in said) == b"in\nend\n"


async def test_a_command_in_the_foreground_needs_a_name_for_its_input(stub: SandboxStub, session_id: str) -> None:
    code, said = await refusal(stub.Exec(pb.ExecRequest(session_id=session_id, command="cat", with_stdin=True)))
    assert (code, said.split(":")[0]) == (grpc.StatusCode.INVALID_ARGUMENT, "with_stdin")


async def test_output_that_is_not_text_is_also_sent_as_bytes(stub: SandboxStub, session_id: str) -> None:
    answer = await stub.Exec(pb.ExecRequest(session_id=session_id, command=r"printf '\377'; printf ok >&2"))
    assert (answer.stdout, answer.stdout_bytes) == ("\N{REPLACEMENT CHARACTER}", b"\xff")
    assert (answer.stderr, answer.stderr_bytes) == ("ok", b"")


async def test_output_beyond_the_limit_is_cut_and_said_so(stub: SandboxStub) -> None:
    limits = pb.SessionLimits(output_bytes=10)
    created = await stub.CreateSession(pb.CreateSessionRequest(limits=limits))
    answer = await stub.Exec(pb.ExecRequest(session_id=created.session_id, command="printf 0123456789abc"))
    assert (answer.stdout, answer.truncated) == ("0123456789", True)


async def test_code_reaches_the_interpreter_byte_for_byte(stub: SandboxStub, session_id: str) -> None:
    code = b"import sys\nsys.stdout.write('$HOME `id` \"q\" \\\\ \xc3\xa4')\n"
    answer = await stub.Exec(pb.ExecRequest(session_id=session_id, code=code, language="python"))
    assert answer.stdout == '$HOME `id` "q" \\ ä'
    assert answer.language == "python"


async def test_arguments_are_not_touched_by_a_shell(stub: SandboxStub, session_id: str) -> None:
    argv = [b"printf", b"%s|", b"$HOME", b"a b", b"\xff"]
    answer = await stub.Exec(pb.ExecRequest(session_id=session_id, argv=argv))
    assert answer.stdout_bytes == b"$HOME|a b|\xff|"


async def test_a_time_out_is_a_result(stub: SandboxStub, session_id: str) -> None:
    answer = await stub.Exec(pb.ExecRequest(session_id=session_id, command="sleep 60", timeout_s=0.1))
    assert (answer.status, answer.exit_code) == ("timed_out", 124)


async def test_an_unknown_session_is_not_found_with_the_text_clients_look_for(stub: SandboxStub) -> None:
    told = await refusal(stub.Exec(pb.ExecRequest(session_id="sess-x", command="true")))
    assert told == (grpc.StatusCode.NOT_FOUND, "session sess-x not found")


async def test_the_health_probe_is_answered_with_not_found(stub: SandboxStub) -> None:
    code, text = await refusal(stub.DestroySession(pb.DestroySessionRequest(session_id="healthcheck-probe-noop")))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "not found" in text


@pytest.mark.parametrize(
    ("rpc", "request_message", "field"),
    [
        ("Exec", pb.ExecRequest(command="true"), "session_id"),
        ("Exec", pb.ExecRequest(session_id="s"), "command"),
        ("Exec", pb.ExecRequest(session_id="s", command="true", argv=[b"true"]), "argv"),
        ("Exec", pb.ExecRequest(session_id="s", command="a\0b"), "command"),
        ("Exec", pb.ExecRequest(session_id="s", command="true", timeout=-1), "timeout"),
        ("Exec", pb.ExecRequest(session_id="s", command="true", timeout_s=float("inf")), "timeout_s"),
        ("Exec", pb.ExecRequest(session_id="s", command="true", workdir="/a\0"), "workdir"),
        ("Exec", pb.ExecRequest(session_id="s", code=b"1", language="cobol"), "language"),
        ("Exec", pb.ExecRequest(session_id="s", command="true", env={"A=B": b""}), "env"),
        ("Exec", pb.ExecRequest(session_id="s", command="true", env={"A": b"\0"}), "env[A]"),
        ("CreateSession", pb.CreateSessionRequest(env={f"K{n}": "" for n in range(65)}), "env"),
        ("CreateSession", pb.CreateSessionRequest(env={"A": "x" * 4097}), "env[A]"),
        ("CreateSession", pb.CreateSessionRequest(env={"A" * 257: ""}), "env"),
        ("CreateSession", pb.CreateSessionRequest(env={f"K{n}": "x" * 4096 for n in range(8)}), "env"),
        ("CreateSession", pb.CreateSessionRequest(runtime_class="magic"), "runtime_class"),
        ("CreateSession", pb.CreateSessionRequest(session_id="a/b"), "session_id"),
        ("CreateSession", pb.CreateSessionRequest(tenant_id=".."), "tenant_id"),
        ("CreateSession", pb.CreateSessionRequest(allowed_hosts=["a b"]), "allowed_hosts"),
        ("CreateSession", pb.CreateSessionRequest(limits=pb.SessionLimits(cpus=float("nan"))), "limits.cpus"),
        ("CreateSession", pb.CreateSessionRequest(limits=pb.SessionLimits(ttl_s=-1)), "limits.ttl_s"),
        ("CreateSession", pb.CreateSessionRequest(secret_refs=[pb.SecretRef()]), "secret_refs.secret_name"),
        ("WriteFile", pb.WriteFileRequest(session_id="s"), "path"),
        ("WriteFile", pb.WriteFileRequest(session_id="s", path="x" * 4097), "path"),
        ("WriteFile", pb.WriteFileRequest(session_id="s", path="x", mode="rw"), "mode"),
        ("WriteFile", pb.WriteFileRequest(session_id="s", path="x", perm=0o100000), "perm"),
        ("PollRun", pb.PollRunRequest(run_id="../x"), "run_id"),
        ("KillRun", pb.KillRunRequest(run_id="x", signal=99), "signal"),
        ("CreateTerminal", pb.CreateTerminalRequest(session_id="s"), "argv"),
        ("TerminalResize", pb.TerminalResizeRequest(terminal_id="t", rows=0, cols=1), "rows"),
        ("TerminalSignal", pb.TerminalSignalRequest(terminal_id="t"), "signal"),
    ],
)
async def test_a_bad_field_is_refused_by_its_name(
    stub: SandboxStub, rpc: str, request_message: object, field: str
) -> None:
    code, text = await refusal(getattr(stub, rpc)(request_message))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith(f"{field}: ")


async def test_rpcs_that_are_not_served_yet_say_so(stub: SandboxStub) -> None:
    code, text = await refusal(stub.PauseSession(pb.PauseSessionRequest(session_id="s")))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "PauseSession" in text


async def test_every_rpc_of_the_descriptor_is_registered(stub: SandboxStub) -> None:
    upstream = [method.name for method in SERVICE.methods][:34]
    assert (upstream[0], upstream[-1]) == ("CreateSession", "UpdateAllowedHosts")
    assert all(hasattr(stub, method.name) for method in SERVICE.methods)


async def test_a_text_stream_is_clean_even_where_characters_are_cut(stub: SandboxStub, session_id: str) -> None:
    halves = r"printf '\303'; sleep 0.05; printf '\244'; printf '\377'"
    call = stub.ExecStream(pb.ExecRequest(session_id=session_id, command=halves))
    text = "".join([message.chunk async for message in call])
    assert text == "ä\N{REPLACEMENT CHARACTER}"


async def test_a_text_stream_ends_with_the_exit_code_in_its_trailer(stub: SandboxStub, session_id: str) -> None:
    call = stub.ExecStream(pb.ExecRequest(session_id=session_id, command="echo hi; exit 3"))
    assert [message.chunk async for message in call] == ["hi\n"]
    trailer = dict(await call.trailing_metadata() or ())
    assert (trailer["k8e-exit-code"], trailer["k8e-status"], trailer["k8e-truncated"]) == ("3", "completed", "false")


@pytest.mark.parametrize("rpc", ["Exec", "ExecStream"])
async def test_a_cancelled_call_stops_the_command_inside(
    stub: SandboxStub, session_id: str, tmp_path: Path, rpc: str
) -> None:
    command = f"echo $$ > {tmp_path}/pid; exec sleep 600"
    call = getattr(stub, rpc)(pb.ExecRequest(session_id=session_id, command=command))
    reading = asyncio.ensure_future(call if rpc == "Exec" else call.read())
    pid = await running(tmp_path / "pid")  # the control: it did run
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await gone(pid)


async def test_a_deadline_stops_the_command_inside(stub: SandboxStub, session_id: str, tmp_path: Path) -> None:
    for deadline_s in DEADLINES_S:
        pid_file = tmp_path / str(deadline_s)
        request = pb.ExecRequest(session_id=session_id, command=f"echo $$ > {pid_file}; exec sleep 600")
        code, _ = await refusal(stub.Exec(request, timeout=deadline_s))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        if pid_file.exists() and (pid := pid_file.read_text().strip()):
            return await gone(int(pid))
    pytest.fail("the command never began")


async def test_separate_streams_stdin_and_exit_travel_on_one_call(stub: SandboxStub, session_id: str) -> None:
    async def inputs() -> AsyncIterator[pb.ExecInput]:
        request = pb.ExecRequest(session_id=session_id, command="echo err >&2; cat; exit 5")
        yield pb.ExecInput(start=request, with_stdin=True)
        yield pb.ExecInput(stdin=b"one\xff")
        yield pb.ExecInput(stdin=b"two")

    outputs = [message async for message in stub.ExecAttach(inputs())]
    assert outputs[0].started.exec_id
    chunks = [message.chunk for message in outputs if message.WhichOneof("output") == "chunk"]
    streams = {
        channel: b"".join(chunk.data for chunk in chunks if chunk.channel == channel)
        for channel in (pb.OUTPUT_CHANNEL_STDOUT, pb.OUTPUT_CHANNEL_STDERR)
    }
    assert list(streams.values()) == [b"one\xfftwo", b"err\n"]
    assert outputs[-1].exit.exit_code == 5


async def test_attaching_to_an_unknown_command_is_not_found(stub: SandboxStub, session_id: str) -> None:
    call = stub.AttachExec(pb.AttachExecRequest(session_id=session_id, exec_id="exec-none"))
    with pytest.raises(aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_signal_on_the_stream_reaches_the_command(stub: SandboxStub, session_id: str) -> None:
    call = stub.ExecAttach()
    await call.write(pb.ExecInput(start=pb.ExecRequest(session_id=session_id, command="echo up; sleep 60")))
    assert (await anext(aiter(call))).started.exec_id
    assert (await anext(aiter(call))).chunk.data == b"up\n"
    await call.write(pb.ExecInput(signal=9))
    assert (await anext(aiter(call))).exit.signal == 9


async def test_a_stream_must_begin_with_start(stub: SandboxStub) -> None:
    call = stub.ExecAttach()
    await call.write(pb.ExecInput(stdin=b"x"))
    with pytest.raises(aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.details() == "start: must be the first message"


async def test_a_second_start_ends_the_stream_and_its_command(stub: SandboxStub, session_id: str) -> None:
    call = stub.ExecAttach()
    start = pb.ExecInput(start=pb.ExecRequest(session_id=session_id, command="sleep 60"))
    await call.write(start)
    await call.write(start)
    with pytest.raises(aio.AioRpcError) as caught:
        async for _ in call:
            pass
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "start: may come only once, as the first message",
    )


async def test_files_of_any_name_and_content_come_back_as_they_were(stub: SandboxStub, session_id: str) -> None:
    name, content = b"/workspace/a b%#\n\xff", bytes(range(256)) * 3000

    async def pieces() -> AsyncIterator[pb.WriteStreamRequest]:
        yield pb.WriteStreamRequest(open=pb.WriteStreamOpen(session_id=session_id, path_bytes=name))
        yield pb.WriteStreamRequest(data=content[:1000])
        yield pb.WriteStreamRequest(data=content[1000:])

    assert (await stub.WriteStream(pieces())).size == len(content)
    read = stub.ReadStream(pb.ReadStreamRequest(session_id=session_id, path_bytes=name))
    assert b"".join([message.data async for message in read]) == content
    listed = await stub.ListFiles(pb.ListFilesRequest(session_id=session_id))
    assert [entry.path_bytes for entry in listed.files] == [name]
    assert listed.files[0].type == "file"


async def test_whole_files_are_text_with_the_bytes_beside(stub: SandboxStub, session_id: str) -> None:
    assert (await stub.WriteFile(pb.WriteFileRequest(session_id=session_id, path="f", content="ä"))).ok
    assert (
        await stub.WriteFile(pb.WriteFileRequest(session_id=session_id, path="f", content_bytes=b"\xff", mode="a"))
    ).ok
    answer = await stub.ReadFile(pb.ReadFileRequest(session_id=session_id, path="f"))
    assert (answer.content, answer.content_bytes) == ("ä\N{REPLACEMENT CHARACTER}", b"\xc3\xa4\xff")


async def test_a_background_run_is_polled_attached_and_killed(stub: SandboxStub, session_id: str) -> None:
    request = pb.ExecRequest(session_id=session_id, command="echo begun; sleep 60", background=True)
    begun = await stub.Exec(request)
    assert (begun.status, bool(begun.run_id)) == ("started", True)
    call = stub.AttachRun(pb.AttachRunRequest(run_id=begun.run_id))
    assert (await anext(aiter(call))).chunk.data == b"begun\n"
    polled = await stub.PollRun(pb.PollRunRequest(run_id=begun.run_id))
    assert (polled.status, polled.stdout) == ("running", "begun\n")
    await stub.KillRun(pb.KillRunRequest(run_id=begun.run_id))
    end = (await anext(aiter(call))).exit
    assert (end.status, end.reason, end.signal) == ("failed", "killed", 9)
    listed = await stub.ListRuns(pb.ListRunsRequest(session_id=session_id))
    assert [run.run_id for run in listed.runs] == [begun.run_id]


async def test_a_terminal_is_written_to_and_ends(stub: SandboxStub, session_id: str) -> None:
    made = await stub.CreateTerminal(pb.CreateTerminalRequest(session_id=session_id, argv=["cat"]))
    await stub.TerminalWrite(pb.TerminalWriteRequest(terminal_id=made.terminal_id, data=b"typed\xff"))
    call = stub.TerminalStream(pb.TerminalStreamRequest(terminal_id=made.terminal_id))
    assert (await anext(aiter(call))).data == b"typed\xff"
    signal = pb.TerminalSignalRequest(terminal_id=made.terminal_id, signal=pb.TERMINAL_SIGNAL_KILL)
    assert (await stub.TerminalSignal(signal)).process_group_id == made.pid
    assert (await anext(aiter(call))).exit.signal == "SIGKILL"


async def test_sessions_show_keys_but_never_values(stub: SandboxStub) -> None:
    asked = pb.CreateSessionRequest(env={"TOKEN": "secret"}, limits=pb.SessionLimits(ttl_s=0, cpus=2))
    created = await stub.CreateSession(asked)
    shown = await stub.GetSession(pb.GetSessionRequest(session_id=created.session_id))
    assert shown == created.session
    assert list(shown.env_keys) == ["TOKEN"]
    assert "secret" not in str(shown)
    assert (shown.expires_at, shown.limits.cpus, shown.limits.ttl_s) == (0, 2, 0)


async def test_only_the_operator_stops_the_server(stub: SandboxStub, door: OpenDoor) -> None:
    await stub.StopServer(pb.StopServerRequest())
    assert door.stopped.is_set()


async def test_whoever_only_follows_cannot_stop_a_command(stub: SandboxStub, session_id: str) -> None:
    request = pb.AttachExecRequest(session_id=session_id, exec_id="mine", follow=True, stop=True)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await anext(aiter(stub.AttachExec(request)))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "follow" in (refused.value.details() or "")
