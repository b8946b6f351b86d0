"""Calls that run something: commands, streams, background runs."""

from __future__ import annotations

import codecs
import functools
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence

from k8e._proto import sandbox_pb2 as pb
from k8e.client.light.calls import new_exec_id
from k8e.client.network import denials
from k8e.client.requests import Watched
from k8e.client.resuming import Resuming
from k8e.client.transport import QUICK_S, deadline
from k8e.client.values import Chunk, ExecInfo, ExecResult, Exit

__all__ = ["Command", "ExecCalls", "Input", "exec_request", "exec_result", "output_item", "raw"]

PIECE = 256 * 1024

Command = str | bytes | Sequence[str | bytes]
"""Text for `/bin/sh -c`, or a list of arguments that no shell touches."""

Input = bytes | AsyncIterable[bytes]


class ExecCalls(Resuming):
    async def exec(
        self,
        session_id: str,
        command: Command,
        timeout: float = 30,
        *,
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
        stdin: Input | None = None,
    ) -> ExecResult:
        """Run a command to its end. Raises: NotFound when the session is gone."""
        request = exec_request(session_id, command, timeout, workdir=workdir, env=env, user=user)
        if stdin is not None:
            return await self._collected(request, stdin, timeout)
        return exec_result(await self._run_once(request, timeout))

    async def _run_once(self, request: pb.ExecRequest, timeout: float) -> pb.ExecResponse:
        """Run it to its end, once, also where the connection is lost and it is asked for again."""
        request.exec_id = new_exec_id()
        return await self._call(self._stub.Exec, request, timeout_s=deadline(timeout))

    async def exec_stream(
        self,
        session_id: str,
        command: Command,
        timeout: float = 300,
        *,
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> AsyncIterator[str]:
        """Output as text, both streams in the order they come; leaving the loop stops the command.

        After a lost connection, as when the server is restarted, it goes on where it stopped.
        """
        request = exec_request(session_id, command, timeout, workdir=workdir, env=env, user=user)
        # A character that is cut in two waits for its other half.
        decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in ("stdout", "stderr")}
        async for item in self._attached(request, None, timeout):
            if isinstance(item, Chunk):
                text = decoders[item.stream].decode(item.data)
            else:
                text = "".join(decoder.decode(b"", final=True) for decoder in decoders.values())
            if text:
                yield text

    async def exec_output(
        self,
        session_id: str,
        command: Command,
        timeout: float = 300,
        *,
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
        stdin: Input | None = None,
        exec_id: str = "",
    ) -> AsyncIterator[Chunk | Exit]:
        """Output as bytes with its stream's name, losing nothing, and one `Exit` at the end.

        After a lost connection, as when the server is restarted, the output goes on where it stopped; not with `stdin`.
        With an `exec_id` of your own another client can take it up by `attach_exec`.
        """
        request = exec_request(session_id, command, timeout, workdir=workdir, env=env, user=user)
        async for item in self._attached(request, stdin, timeout, exec_id):
            yield item

    async def attach_exec(
        self, session_id: str, exec_id: str, *, stdout_offset: int = 0, stderr_offset: int = 0, stop: bool = False
    ) -> AsyncIterator[Chunk | Exit]:
        """A foreground command's output from the given offsets on; leaving the loop stops it only with `stop`."""
        request = pb.AttachExecRequest(
            session_id=session_id, exec_id=exec_id, stdout_offset=stdout_offset, stderr_offset=stderr_offset, stop=stop
        )
        async for message in self._each(self._stub.AttachExec(request)):
            yield output_item(message)

    async def execs(self, session_id: str) -> list[ExecInfo]:
        """Every command, background run and terminal's program of a session that runs, or whose end was not told yet, oldest first.

        The `exec_id` of a run is its run's id, and of a terminal its terminal's.
        """
        request = pb.ListExecsRequest(session_id=session_id)
        return [exec_info(each) async for page in self._pages(self._stub.ListExecs, request) for each in page.execs]

    async def follow_exec(
        self, session_id: str, exec_id: str, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AsyncIterator[Chunk | Exit]:
        """Any of them, beside whoever else reads it: what is still there from the offsets on, and what comes.

        It does not wait for this reader: what comes faster than it is read is left out, and `Exit.truncated` says so.
        """
        request = pb.AttachExecRequest(
            session_id=session_id,
            exec_id=exec_id,
            stdout_offset=stdout_offset,
            stderr_offset=stderr_offset,
            follow=True,
        )
        async for message in self._each(self._stub.AttachExec(request)):
            yield output_item(message)

    async def send_input(self, session_id: str, exec_id: str, data: str | bytes = b"", *, eof: bool = False) -> bool:
        """Input for any of them that reads some, behind all that anybody has sent; with `eof` the last of it.

        Waits while it does not read. False when it reads no more; what was sent then may be lost.
        """
        sent = raw(data)
        pieces = [sent[start : start + PIECE] for start in range(0, len(sent), PIECE)] or [b""]
        for number, piece in enumerate(pieces, start=1):
            request = pb.WriteInputRequest(
                session_id=session_id, exec_id=exec_id, data=piece, append=True, eof=eof and number == len(pieces)
            )
            answer = await self._call(self._stub.WriteInput, request, timeout_s=QUICK_S)
            while not answer.taken and not answer.closed:
                answer = await self._call(self._stub.WriteInput, request, timeout_s=QUICK_S)
            if not answer.taken:
                return False
        return True

    async def signal_exec(self, session_id: str, exec_id: str, signal: int = 15) -> None:
        """Signal any of them, 1 to 64; 9 ends everything it started. Raises: NotFound once it has ended and is forgotten."""
        request = pb.SignalExecRequest(session_id=session_id, exec_id=exec_id, signal=signal)
        await self._call(self._stub.SignalExec, request, timeout_s=QUICK_S)

    async def _attached(
        self, request: pb.ExecRequest, stdin: Input | None, timeout: float, exec_id: str = ""
    ) -> AsyncIterator[Chunk | Exit]:
        # The id is ours, so that what a lost connection has cut off is taken up again instead of run twice.
        name = exec_id or new_exec_id()
        first = functools.partial(self._begun, request, stdin, timeout, name)
        if stdin is not None:
            # Nobody knows how much of the input arrived.
            async for item in first():
                yield item
            return

        def again(stdout_offset: int, stderr_offset: int) -> AsyncIterator[Chunk | Exit]:
            # Still ours: whoever leaves the loop now stops the command, as before the connection was lost.
            return self.attach_exec(
                request.session_id, name, stdout_offset=stdout_offset, stderr_offset=stderr_offset, stop=True
            )

        async for item in self._resumed(first, again):
            yield item

    async def _begun(
        self, request: pb.ExecRequest, stdin: Input | None, timeout: float, exec_id: str
    ) -> AsyncIterator[Chunk | Exit]:
        given = Watched(inputs(request, stdin, exec_id))
        with given.telling():
            async for message in self._each(self._stub.ExecAttach(aiter(given), timeout=deadline(timeout))):
                if message.WhichOneof("output") != "started":
                    yield output_item(message)

    async def _collected(self, request: pb.ExecRequest, stdin: Input, timeout: float) -> ExecResult:
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        async for item in self._attached(request, stdin, timeout):
            if isinstance(item, Exit):
                return collected_result(request, kept["stdout"], kept["stderr"], item)
            kept[item.stream] += item.data
        raise AssertionError("the server ends every stream with an exit")


async def inputs(request: pb.ExecRequest, stdin: Input | None, exec_id: str) -> AsyncIterator[pb.ExecInput]:
    yield pb.ExecInput(start=request, with_stdin=stdin is not None, exec_id=exec_id)
    if isinstance(stdin, bytes):
        for start in range(0, len(stdin), PIECE):
            yield pb.ExecInput(stdin=stdin[start : start + PIECE])
    elif stdin is not None:
        async for data in stdin:
            yield pb.ExecInput(stdin=data)
    if stdin is not None:
        # Said, because the end of our messages may also mean that we are gone.
        yield pb.ExecInput(eof=True)


def exec_request(
    session_id: str,
    command: Command,
    timeout: float,
    *,
    workdir: str = "",
    env: Mapping[str, str] | None = None,
    user: str = "",
) -> pb.ExecRequest:
    request = pb.ExecRequest(session_id=session_id, timeout_s=timeout, user=user, workdir_bytes=raw(workdir))
    for key, value in (env or {}).items():
        request.env[key] = raw(value)
    if isinstance(command, str | bytes):
        request.command_bytes = raw(command)
    else:
        request.argv.extend(raw(each) for each in command)
    return request


def raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def exec_result(message: pb.ExecResponse, *, recreated: bool = False) -> ExecResult:
    return ExecResult(
        stdout=message.stdout,
        stderr=message.stderr,
        exit_code=message.exit_code,
        session_id=message.session_id,
        status=message.status,
        duration_ms=message.duration_ms,
        truncated=message.truncated,
        language=message.language,
        reason=message.reason,
        signal=message.signal,
        detail=message.detail,
        stdout_bytes=message.stdout_bytes or message.stdout.encode(),
        stderr_bytes=message.stderr_bytes or message.stderr.encode(),
        session_recreated=recreated,
        egress_denied=denials(message.egress_denied),
    )


def collected_result(request: pb.ExecRequest, stdout: bytearray, stderr: bytearray, end: Exit) -> ExecResult:
    return ExecResult(
        stdout=stdout.decode("utf-8", "replace"),
        stderr=stderr.decode("utf-8", "replace"),
        exit_code=end.exit_code,
        session_id=request.session_id,
        status=end.status,
        duration_ms=end.duration_ms,
        language=request.language,
        reason=end.reason,
        signal=end.signal,
        detail=end.detail,
        stdout_bytes=bytes(stdout),
        stderr_bytes=bytes(stderr),
        egress_denied=end.egress_denied,
    )


def output_item(message: pb.ExecOutput) -> Chunk | Exit:
    if message.WhichOneof("output") == "chunk":
        chunk = message.chunk
        return Chunk("stderr" if chunk.channel == pb.OUTPUT_CHANNEL_STDERR else "stdout", chunk.offset, chunk.data)
    end = message.exit
    return Exit(
        exit_code=end.exit_code,
        status=end.status,
        reason=end.reason,
        signal=end.signal,
        detail=end.detail,
        duration_ms=end.duration_ms,
        truncated=end.truncated,
        egress_denied=denials(end.egress_denied),
    )


def exec_info(message: pb.ExecInfo) -> ExecInfo:
    return ExecInfo(
        exec_id=message.exec_id,
        command=message.command,
        pid=message.pid,
        started_at=message.started_at,
        running=message.running,
        takes_input=message.takes_input,
        has_terminal=message.has_terminal,
        is_kept=message.is_kept,
    )
