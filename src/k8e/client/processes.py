"""A foreground command as an object: write to it, read from it, signal it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self

from k8e._proto import sandbox_pb2 as pb
from k8e.client.execs import PIECE, Command, collected_result, exec_request, output_item, raw
from k8e.client.transport import Transport, deadline
from k8e.client.values import Chunk, ExecResult, Exit

__all__ = ["AsyncProcess", "AsyncProcessInput", "ProcessCalls"]

QUEUED = 8
"""Pieces of input that may wait to be sent; beyond them the writer waits."""


class ProcessCalls(Transport):
    async def start_process(
        self,
        session_id: str,
        command: Command,
        timeout: float = 300,
        *,
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> AsyncProcess:
        """Start a command whose input stays open; it is stopped when the object is closed."""
        request = exec_request(session_id, command, timeout, workdir=workdir, env=env, user=user)
        given: asyncio.Queue[pb.ExecInput | None] = asyncio.Queue(QUEUED)
        await given.put(pb.ExecInput(start=request, with_stdin=True))
        call = self._stub.ExecAttach(taken(given), timeout=deadline(timeout))
        outputs = self._each(call)
        begun = await anext(outputs)
        return AsyncProcess(request, begun.started.exec_id, given, outputs)


class AsyncProcessInput:
    """The standard input of a command. Read its output meanwhile: as with every pipe, a full one waits."""

    def __init__(self, given: asyncio.Queue[pb.ExecInput | None]) -> None:
        self._given = given
        self.is_open = True

    async def write(self, data: str | bytes) -> None:
        """Raises: ValueError once it is closed."""
        if not self.is_open:
            raise ValueError("standard input is closed")
        sent = raw(data)
        for start in range(0, len(sent), PIECE):
            await self._given.put(pb.ExecInput(stdin=sent[start : start + PIECE]))

    async def close(self) -> None:
        """The command reads end-of-file; once is enough."""
        if self.is_open:
            self.is_open = False
            await self._given.put(pb.ExecInput(eof=True))


class AsyncProcess:
    """A running command. Iterating yields its output; `exit` is there when it has ended."""

    def __init__(
        self,
        request: pb.ExecRequest,
        exec_id: str,
        given: asyncio.Queue[pb.ExecInput | None],
        outputs: AsyncIterator[pb.ExecOutput],
    ) -> None:
        self._request = request
        self._given = given
        self._outputs = outputs
        self.exec_id = exec_id
        self.session_id = request.session_id
        self.stdin = AsyncProcessInput(given)
        self.exit: Exit | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self.output()

    async def output(self) -> AsyncIterator[Chunk]:
        """Its output from here on, with its stream's name."""
        while self.exit is None:
            item = output_item(await anext(self._outputs))
            if isinstance(item, Exit):
                self.exit = item
                self._end_input()
                return
            yield item

    async def wait(self) -> ExecResult:
        """Close its input and wait for its end; the result has what was not read before."""
        await self.stdin.close()
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        async for chunk in self.output():
            kept[chunk.stream] += chunk.data
        if self.exit is None:
            raise AssertionError("the server ends every stream with an exit")
        return collected_result(self._request, kept["stdout"], kept["stderr"], self.exit)

    async def kill(self, signal: int = 9) -> None:
        """Signal it; 9 ends everything it started. Input that still waits is not delivered any more."""
        self._forget_input()
        await self._given.put(pb.ExecInput(signal=signal))

    async def close(self) -> None:
        """Stop the command if it still runs; once is enough."""
        # First this: an end of input that the command could still read would look like one that was meant.
        await self._outputs.aclose()  # type: ignore[attr-defined]  # `_each` is a generator
        self._end_input()

    def _forget_input(self) -> None:
        while not self._given.empty():
            self._given.get_nowait()

    def _end_input(self) -> None:
        self.stdin.is_open = False
        self._forget_input()
        self._given.put_nowait(None)


async def taken(given: asyncio.Queue[pb.ExecInput | None]) -> AsyncIterator[pb.ExecInput]:
    while (message := await given.get()) is not None:
        yield message
