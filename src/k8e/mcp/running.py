"""Tools that run something: programs in the client's own session, commands in a named one, packages."""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import mcp_types as types

from k8e.client import Chunk, ExecResult, Exit
from k8e.client.errors import NotFound, SandboxLost
from k8e.mcp.calls import ToolCall
from k8e.mcp.results import Fields, exact, raw_text, told, unusual

__all__ = ["OUTPUT_BYTES", "STREAM_CHARS", "exec_command", "exec_stream", "pip_install", "run"]

RUN_S = 30
STREAM_S = 300
OUTPUT_BYTES = 1024 * 1024
"""Of each stream in one answer, whatever the session allows: no model reads more, and to encode it holds up others."""
STREAM_CHARS = 1024 * 1024
"""Of a streamed command's output in its answer; all of it has been shown as progress by then."""
LOST = (
    "The session of earlier calls had ended: this ran in a new, empty one, and files and packages of before are gone."
)


async def run(call: ToolCall) -> types.CallToolResult:
    result, note = await ran(call)
    result = cut(result)
    fields: Fields = {"stdout": result.stdout, "exit_code": result.exit_code, "session_id": result.session_id}
    if result.stderr or result.exit_code:
        fields["stderr"] = result.stderr
    fields |= unusual(result) | (exact(result) if call.args.flag("binary") else {})
    if note:
        fields["note"] = note
    return told(fields)


async def ran(call: ToolCall) -> tuple[ExecResult, str]:
    """In the named session, or the client's own; once more in a new one where that is gone, because then nothing ran."""
    if call.session_id:
        return await ran_in(call, call.session_id), ""
    own = await call.scope.own()
    try:
        return await ran_in(call, own), ""
    except (NotFound, SandboxLost):
        return await ran_in(call, await call.scope.own(gone=own)), LOST


async def ran_in(call: ToolCall, session_id: str) -> ExecResult:
    args = call.args
    return await call.client.run(
        args.text("code"),
        args.text("language").lower(),
        args.number("timeout", RUN_S),
        session_id=session_id,
        workdir=args.text("workdir"),
        env=args.by_name("env"),
    )


async def exec_command(call: ToolCall) -> types.CallToolResult:
    args = call.args
    result = cut(
        await call.client.exec(
            call.session_id,
            args.text("command"),
            args.number("timeout", RUN_S),
            workdir=args.text("workdir"),
            env=args.by_name("env"),
        )
    )
    fields: Fields = {"stdout": result.stdout, "stderr": result.stderr, "exit_code": result.exit_code}
    return told(fields | unusual(result) | (exact(result) if args.flag("binary") else {}))


def cut(result: ExecResult) -> ExecResult:
    """The beginning of its output, where there is more than an answer may have."""
    if max(len(result.stdout_bytes), len(result.stderr_bytes), len(result.stdout), len(result.stderr)) <= OUTPUT_BYTES:
        return result
    return replace(
        result,
        stdout=result.stdout[:OUTPUT_BYTES],
        stderr=result.stderr[:OUTPUT_BYTES],
        stdout_bytes=result.stdout_bytes[:OUTPUT_BYTES],
        stderr_bytes=result.stderr_bytes[:OUTPUT_BYTES],
        truncated=True,
    )


async def exec_stream(call: ToolCall) -> types.CallToolResult:
    """Output as progress while it comes, and all of it at the end."""
    args = call.args
    output = call.client.exec_output(
        call.session_id,
        args.text("command"),
        args.number("timeout", STREAM_S),
        workdir=args.text("workdir"),
        env=args.by_name("env"),
    )
    kept, end = await shown(call, output)
    text = "".join(kept)
    fields: Fields = {"output": text[:STREAM_CHARS], "exit_code": end.exit_code, **unusual(end)}
    if len(text) > STREAM_CHARS:
        fields |= {"truncated": True, "note": "The rest of the output was shown as progress; write it to a file."}
    told_beside = {name: value for name, value in fields.items() if name != "output"}
    more = [raw_text(json.dumps(told_beside, ensure_ascii=False))] if end.exit_code or len(told_beside) > 1 else []
    return told(fields, *more, text=fields["output"])


async def shown(call: ToolCall, output: AsyncIterator[Chunk | Exit]) -> tuple[list[str], Exit]:
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
    kept, chars, count = list[str](), 0, 0
    async for item in output:
        if isinstance(item, Exit):
            rest = "".join(decoder.decode(b"", final=True) for decoder in decoders.values())
            return [*kept, rest], item
        count += len(item.data)
        text = decoders[item.stream].decode(item.data)
        await call.progress(count, text)
        if chars <= STREAM_CHARS:
            kept.append(text)
            chars += len(text)
    raise AssertionError("the server ends every stream with an exit")


async def pip_install(call: ToolCall) -> types.CallToolResult:
    result = await call.client.pip_install(call.session_id, call.args.texts("packages"))
    return told({"output": result.stdout, "exit_code": result.exit_code})
