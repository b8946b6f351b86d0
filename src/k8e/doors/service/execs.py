"""Foreground commands: whole answers, clean text streams, and lossless streams both ways.

A call that is cancelled, or whose deadline passes, stops its command: grpc cancels the handler's task, and the
engine stops what a cancelled call started.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import functools
import math
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TypeVar

from google.protobuf.message import Message

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import fields
from k8e.doors.service.call import Call
from k8e.doors.service.encoding import LARGE_BYTES, FairWorker, LargeAnswer, Piece, text
from k8e.doors.service.network import denial_messages
from k8e.doors.service.paging import page
from k8e.doors.service.sessions import shown
from k8e.engine.engine import Engine
from k8e.engine.process import Process, ProcessView
from k8e.engine.process_stream import Output
from k8e.engine.runs import RunView
from k8e.errors import InvalidSpec, SandboxLost
from k8e.model import Argv, Code, Command, Denial, ExecResult, Outcome, Shell

__all__ = ["ExecRpcs", "command", "exit_message", "output_message", "with_output"]

M = TypeVar("M", bound=Message)

COMMAND_BYTES = 32 * 1024 * 1024
ARGUMENTS = 4096
INPUT_BYTES = 512 * 1024
"""In one call; in base64 it fits into a frame to the sandbox."""


class ExecRpcs:
    def __init__(self, engine: Engine, worker: FairWorker) -> None:
        self._engine = engine
        self._worker = worker

    async def Exec(self, call: Call, request: pb.ExecRequest) -> pb.ExecResponse | LargeAnswer:
        session_id = fields.session_id(request.session_id)
        asked_by = call.caller.identity
        if request.background:
            if request.exec_id:
                raise InvalidSpec(
                    "is for commands in the foreground; a background run gets its own id", field="exec_id"
                )
            asked = command(request, stdin=request.with_stdin)
            return started(await self._engine.start_run(call.owner, session_id, asked, asked_by=asked_by), request)
        result = await self._engine.exec(
            call.owner,
            session_id,
            command(request, stdin=request.with_stdin),
            exec_id=fields.word(request.exec_id, "exec_id", required=False),
            asked_by=asked_by,
            # Twice: what is captured here is there once more when it is encoded, and must not take the room for that.
            reserve=lambda count: call.reservation.grow(2 * count),
        )
        call.reservation.resize(len(result.stdout) + len(result.stderr))
        return await with_output(
            self._worker, call, answer(result, request), stdout=result.stdout, stderr=result.stderr
        )

    async def ExecStream(self, call: Call, request: pb.ExecRequest) -> None:
        if request.background:
            raise InvalidSpec("a stream cannot be in the background; use Exec, then AttachRun", field="background")
        session_id = fields.session_id(request.session_id)
        process = await self._engine.open_exec(
            call.owner,
            session_id,
            command(request),
            exec_id=fields.word(request.exec_id, "exec_id", required=False),
            asked_by=call.caller.identity,
        )
        try:
            await write_text(call, process)
        finally:
            await process.close()

    async def ExecAttach(self, call: Call, inputs: AsyncIterator[pb.ExecInput]) -> None:
        first = await anext(inputs, None)
        if first is None or first.WhichOneof("input") != "start":
            raise InvalidSpec("must be the first message", field="start")
        session_id = fields.session_id(first.start.session_id)
        inner_id = fields.word(first.start.exec_id, "start.exec_id", required=False)
        process = await self._engine.open_exec(
            call.owner,
            session_id,
            command(first.start, stdin=first.with_stdin or first.start.with_stdin),
            exec_id=fields.word(first.exec_id, "exec_id", required=False) or inner_id,
            asked_by=call.caller.identity,
        )
        begun = pb.ExecStarted(exec_id=process.id, session_id=session_id)
        try:
            await call.write(pb.ExecOutput(started=begun))
            async with asyncio.TaskGroup() as group:
                feeding = group.create_task(
                    feed(process, inputs, stdin=first.with_stdin), name=f"input of {process.id}"
                )
                await write_output(call, process)
                feeding.cancel()
        finally:
            await process.close()

    async def WriteInput(self, call: Call, request: pb.WriteInputRequest) -> pb.WriteInputResponse:
        if len(request.data) > INPUT_BYTES:
            raise InvalidSpec(f"is longer than {INPUT_BYTES} bytes: send it in pieces", field="data")
        session_id, exec_id = fields.session_id(request.session_id), fields.word(request.exec_id, "exec_id")
        if request.append:
            was_taken, is_open = await self._engine.append_input(
                call.owner, session_id, exec_id, request.data, is_last=request.eof
            )
            return pb.WriteInputResponse(taken=was_taken, closed=not is_open)
        taken, is_open = await self._engine.write_input(
            call.owner,
            session_id,
            exec_id,
            fields.offset(request.offset, "offset"),
            request.data,
            is_last=request.eof,
        )
        return pb.WriteInputResponse(offset=taken, closed=not is_open)

    async def AttachExec(self, call: Call, request: pb.AttachExecRequest) -> None:
        session_id, exec_id = fields.session_id(request.session_id), fields.word(request.exec_id, "exec_id")
        if request.follow:
            if request.stop:
                raise InvalidSpec("cannot be together with follow, which only looks", field="stop")
            follower = await self._engine.follow_exec(call.owner, session_id, exec_id, offsets(request))
            try:
                async for item in follower:
                    if isinstance(item, Outcome):
                        await call.write(exit_message(item, truncated=follower.truncated, denied=follower.denied))
                    else:
                        await call.write(output_message(item))
            finally:
                await follower.close()
            return
        process = await self._engine.attach_exec(call.owner, session_id, exec_id, offsets(request), stop=request.stop)
        try:
            await write_output(call, process)
        finally:
            await process.close(kill=request.stop)

    async def ListExecs(self, call: Call, request: pb.ListExecsRequest) -> pb.ListExecsResponse:
        found = await self._engine.list_execs(call.owner, fields.session_id(request.session_id))
        execs = [each for each in found if place_in_list(each) > request.page_token]
        messages = await page(execs, exec_info)
        more = place_in_list(execs[len(messages) - 1]) if len(messages) < len(execs) else b""
        return pb.ListExecsResponse(execs=messages, next_page_token=more)

    async def SignalExec(self, call: Call, request: pb.SignalExecRequest) -> pb.SignalExecResponse:
        if request.signal == 0:
            raise InvalidSpec("must be 1-64; 9 ends everything that was started", field="signal")
        await self._engine.signal_exec(
            call.owner,
            fields.session_id(request.session_id),
            fields.word(request.exec_id, "exec_id"),
            fields.signal_number(request.signal),
        )
        return pb.SignalExecResponse()


def place_in_list(view: ProcessView) -> bytes:
    """What a list is sorted by, oldest first, and goes on after."""
    return b"%020.6f %s" % (view.started_at, view.exec_id.encode("utf-8", "replace"))


def exec_info(view: ProcessView) -> pb.ExecInfo:
    return pb.ExecInfo(
        exec_id=shown(view.exec_id),
        command=" ".join(shown(view.command).split()),
        pid=view.pid,
        started_at=view.started_at,
        running=view.is_running,
        takes_input=view.takes_input,
        has_terminal=view.has_terminal,
        is_kept=view.is_kept,
    )


async def feed(process: Process, inputs: AsyncIterator[pb.ExecInput], *, stdin: bool) -> None:
    """Pass on what the caller sends, as long as there is a sandbox: of its death the output tells."""
    with contextlib.suppress(SandboxLost):
        await pass_on(process, inputs, stdin=stdin)


async def pass_on(process: Process, inputs: AsyncIterator[pb.ExecInput], *, stdin: bool) -> None:
    """The end of the caller's messages is the end of standard input."""
    async for message in inputs:
        match message.WhichOneof("input"):
            case "stdin" | "eof" if not stdin:
                raise InvalidSpec("comes without with_stdin on the first message", field="stdin")
            case "stdin":
                await process.send(message.stdin)
            case "eof":
                await process.send_eof()
                stdin = False
            case "signal":
                await process.signal(fields.signal_number(message.signal))
            case other:
                raise InvalidSpec("may come only once, as the first message", field=other or "input")
    if stdin:
        await process.send_eof()


async def write_output(call: Call, process: Process) -> None:
    async for item in process:
        if isinstance(item, Outcome):
            await call.write(exit_message(item, denied=process.denied))
        else:
            await call.write(output_message(item))


async def write_text(call: Call, process: Process) -> None:
    """Both streams as one clean text; a character cut in two waits for its other half."""
    decoders = {channel: codecs.getincrementaldecoder("utf-8")("replace") for channel in (1, 2)}
    async for item in process:
        if isinstance(item, Outcome):
            rest = "".join(decoder.decode(b"", final=True) for decoder in decoders.values())
            await write_chunk(call, rest)
            call.trail(
                exit_code=item.exit_code,
                status=item.status,
                reason=item.reason,
                signal=item.signal,
                duration_ms=item.duration_ms,
                truncated=False,
            )
        else:
            await write_chunk(call, decoders[item.channel].decode(item.payload))


async def write_chunk(call: Call, text: str) -> None:
    if text:
        await call.write(pb.ExecStreamResponse(chunk=text))


def command(request: pb.ExecRequest, *, stdin: bool = False) -> Command:
    """The command that a request describes in one of three ways."""
    if request.with_stdin and not (request.exec_id or request.background):
        raise InvalidSpec("needs an exec_id, by which the input is sent", field="with_stdin")
    # Where it names no interpreter it is only a word that is sent back.
    fields.word(request.language, "language", required=False)
    return Command(
        what=what(request),
        cwd=fields.path(request.workdir, request.workdir_bytes, "workdir", default="/workspace"),
        env=fields.environment(request.env),
        user=fields.word(request.user, "user", required=False),
        timeout_s=timeout(request),
        stdin=stdin,
    )


def what(request: pb.ExecRequest) -> Argv | Shell | Code:
    text = request.command_bytes or request.command.encode()
    ways = [name for name, given in (("command", text), ("argv", request.argv)) if given]
    ways += ["code"] if request.HasField("code") else []
    if len(ways) != 1:
        raise InvalidSpec("give exactly one of command, argv and code", field=ways[1] if ways else "command")
    match ways[0]:
        case "code":
            return Code(fields.language(request.language), program(request.code))
        case "argv":
            return Argv(arguments(request.argv))
        case _:
            return Shell(fields.clean(text, "command", limit=COMMAND_BYTES))


def program(code: bytes) -> str:
    """A program's text may hold anything, NUL included: what that means is the interpreter's to say."""
    if len(code) > COMMAND_BYTES:
        raise InvalidSpec(f"is longer than {COMMAND_BYTES} bytes", field="code")
    return code.decode("utf-8", "surrogateescape")


def arguments(argv: object) -> tuple[str, ...]:
    given = tuple(argv)  # type: ignore[var-annotated, arg-type]  # a repeated field has no public type
    if len(given) > ARGUMENTS:
        raise InvalidSpec(f"has more than {ARGUMENTS} arguments", field="argv")
    return tuple(fields.clean(each, "argv", limit=COMMAND_BYTES) for each in given)


def timeout(request: pb.ExecRequest) -> float | None:
    """None takes the session's limit; a background run without a time-out has no limit."""
    if request.HasField("timeout_s"):
        if not math.isfinite(request.timeout_s):
            raise InvalidSpec("must be a number of seconds", field="timeout_s")
        return max(request.timeout_s, 0.0)
    if request.timeout < 0:
        raise InvalidSpec("must be 0 or more seconds", field="timeout")
    return float(request.timeout) or (0.0 if request.background else None)


def offsets(request: pb.AttachExecRequest | pb.AttachRunRequest) -> Mapping[int, int]:
    return {
        1: fields.offset(request.stdout_offset, "stdout_offset"),
        2: fields.offset(request.stderr_offset, "stderr_offset"),
    }


async def with_output(worker: FairWorker, call: Call, message: M, **output: bytes) -> M | LargeAnswer:
    """The message with these, each as text and, where that had to replace some, as exact bytes too."""
    if sum(map(len, output.values())) <= LARGE_BYTES:
        for name, data in output.items():
            shown_as, raw = fields.text_and_bytes(data)
            setattr(message, name, shown_as)
            setattr(message, f"{name}_bytes", raw)
        return message
    return LargeAnswer(message, await worker.run(call.owner, functools.partial(contents, output)))


def contents(output: Mapping[str, bytes]) -> Mapping[str, Iterable[Piece]]:
    """Exact bytes first: where not all has room, a text beside them is what is cut."""
    found = [text(name, data) for name, data in output.items()]
    together = {name: pieces for each in found for name, pieces in each.items()}
    return dict(sorted(together.items(), key=lambda item: not item[0].endswith("_bytes")))


def answer(result: ExecResult, request: pb.ExecRequest) -> pb.ExecResponse:
    """All but the output."""
    outcome = result.outcome
    return pb.ExecResponse(
        exit_code=outcome.exit_code,
        session_id=request.session_id,
        status=outcome.status,
        duration_ms=outcome.duration_ms,
        truncated=result.truncated,
        language=request.language,
        reason=outcome.reason,
        signal=outcome.signal,
        detail=shown(outcome.detail),
        egress_denied=denial_messages(result.egress_denied),
    )


def started(run: RunView, request: pb.ExecRequest) -> pb.ExecResponse:
    return pb.ExecResponse(
        run_id=run.run_id, status="started", session_id=request.session_id, language=request.language
    )


def output_message(output: Output) -> pb.ExecOutput:
    channel = pb.OUTPUT_CHANNEL_STDERR if output.channel == 2 else pb.OUTPUT_CHANNEL_STDOUT
    return pb.ExecOutput(chunk=pb.OutputChunk(channel=channel, offset=output.offset, data=output.payload))


def exit_message(outcome: Outcome, *, truncated: bool = False, denied: tuple[Denial, ...] = ()) -> pb.ExecOutput:
    return pb.ExecOutput(
        exit=pb.ExecExit(
            exit_code=outcome.exit_code,
            status=outcome.status,
            reason=outcome.reason,
            signal=outcome.signal,
            detail=shown(outcome.detail),
            duration_ms=outcome.duration_ms,
            truncated=truncated,
            egress_denied=denial_messages(denied),
        )
    )
