"""Tools that run something: programs, commands, packages; in a named session or in the client's own."""

from __future__ import annotations

import codecs
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import cast

import mcp_types as types

from k8e.client import Chunk, Exit
from k8e.client.errors import SandboxError
from k8e.mcp.calls import Done, ToolCall
from k8e.mcp.outputs import Output, closing, end_all
from k8e.mcp.results import Fields, more_memory, raw_text, told, unusual, with_notes

__all__ = ["exec_command", "exec_stream", "pip_install", "run"]

RUN_S = 30
STREAM_S = 300
STREAMS = ("stdout", "stderr")
KILLED = 128 + 9

Items = AsyncGenerator[Chunk | Exit, None]


async def run(call: ToolCall) -> types.CallToolResult:
    args = call.args

    def begin(session_id: str) -> AsyncIterator[Chunk | Exit]:
        return call.client.run_output(
            args.text("code"),
            args.text("language").lower(),
            args.number("timeout", RUN_S),
            session_id=session_id,
            workdir=args.text("workdir"),
            env=args.by_name("env"),
        )

    ended, fields, links = await ran(call, begin)
    if not fields["stderr"] and not ended.value.exit_code:
        del fields["stderr"]
    first = {"stdout": fields["stdout"], "exit_code": fields["exit_code"], "session_id": ended.session_id}
    return told(first | fields, *links)


async def exec_command(call: ToolCall) -> types.CallToolResult:
    _, fields, links = await ran(call, commanding(call, RUN_S))
    return told(fields, *links)


def commanding(call: ToolCall, timeout_s: float) -> Callable[[str], AsyncIterator[Chunk | Exit]]:
    args = call.args

    def begin(session_id: str) -> AsyncIterator[Chunk | Exit]:
        return call.client.exec_output(
            session_id,
            args.text("command"),
            args.number("timeout", timeout_s),
            workdir=args.text("workdir"),
            env=args.by_name("env"),
        )

    return begin


async def ran(
    call: ToolCall, begin: Callable[[str], AsyncIterator[Chunk | Exit]]
) -> tuple[Done[Exit], Fields, list[types.ResourceLink]]:
    """A command to its end, with its two streams apart."""
    most = await call.most_chars()
    started = await start(call, begin)
    outputs = {name: Output(call, started.session_id, name, most) for name in STREAMS}

    async def take(chunk: Chunk) -> None:
        await outputs[chunk.stream].add(chunk.data)

    with closing(*outputs.values()):
        ended = await follow(started, take)
        await end_all(list(outputs.values()), most, is_exact=call.args.flag("binary"))
    return ended, *await ended_fields(call, ended, list(outputs.values()))


async def exec_stream(call: ToolCall) -> types.CallToolResult:
    """Output as progress while it comes, and at the end as much of it as an answer has room for."""
    most = await call.most_chars()
    started = await start(call, commanding(call, STREAM_S))
    output = Output(call, started.session_id, "output", most)
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in STREAMS}
    count = 0

    async def take(chunk: Chunk) -> None:
        nonlocal count
        count += len(chunk.data)
        text = decoders[chunk.stream].decode(chunk.data)
        await call.progress(count, text)
        await output.add(text.encode())

    with closing(output):
        ended = await follow(started, take)
        await output.add("".join(decoder.decode(b"", final=True) for decoder in decoders.values()).encode())
        await end_all([output], most)
    fields, links = await ended_fields(call, ended, [output])
    told_beside = {name: value for name, value in fields.items() if name != "output"}
    is_unusual = bool(ended.value.exit_code) or len(told_beside) > 1
    more = [raw_text(json.dumps(told_beside, ensure_ascii=False))] if is_unusual else []
    return told(fields, *more, *links, text=fields["output"])


async def pip_install(call: ToolCall) -> types.CallToolResult:
    most = await call.most_chars()

    async def install(session_id: str) -> tuple[int, bytes]:
        result = await call.client.pip_install(session_id, call.args.texts("packages"))
        return result.exit_code, result.stdout_bytes

    done = await call.in_session(install)
    exit_code, said = done.value
    output = Output(call, done.session_id, "output", most)
    with closing(output):
        await output.add(said)
        await end_all([output], most)
    fields = {**output.fields(), "exit_code": exit_code} | ({"truncated": True} if output.is_short else {})
    return told(with_notes(fields, done.note, output.note()), *output.links())


async def start(
    call: ToolCall, begin: Callable[[str], AsyncIterator[Chunk | Exit]]
) -> Done[tuple[Chunk | Exit, Items]]:
    """A command whose first word has come: it tells that the session is there, and after it nothing is begun again."""

    async def begun(session_id: str) -> tuple[Chunk | Exit, Items]:
        items = cast("Items", begin(session_id))
        return await anext(items), items

    return await call.in_session(begun)


async def follow(started: Done[tuple[Chunk | Exit, Items]], take: Callable[[Chunk], Awaitable[None]]) -> Done[Exit]:
    """Each piece of its output to `take`, in order; leaving early, for whatever reason, ends the command."""
    item, items = started.value
    async with contextlib.aclosing(items):
        while isinstance(item, Chunk):
            await take(item)
            item = await anext(items)
    return Done(item, started.session_id, started.note)


async def ended_fields(
    call: ToolCall, ended: Done[Exit], outputs: Sequence[Output]
) -> tuple[Fields, list[types.ResourceLink]]:
    """The fields of an answer, and links to what it has no room for."""
    fields = Fields()
    for each in outputs:
        fields |= each.fields()
    fields |= {"exit_code": ended.value.exit_code, **unusual(ended.value)}
    if any(each.is_short for each in outputs):
        fields["truncated"] = True
    notes = [ended.note, *(each.note() for each in outputs)]
    is_sure = ended.value.reason == "oom_killed"
    # A shell says no more than that something of its own was killed.
    if is_sure or (ended.value.exit_code == KILLED and not ended.value.reason):
        notes.append(more_memory(await memory_of(call, ended.session_id), is_sure=is_sure))
    return with_notes(fields, *notes), [link for each in outputs for link in each.links()]


async def memory_of(call: ToolCall, session_id: str) -> int:
    """What a session may use, in bytes; 0 where it has ended meanwhile."""
    try:
        return (await call.client.get(session_id)).limits.memory_bytes or 0
    except SandboxError:
        return 0
