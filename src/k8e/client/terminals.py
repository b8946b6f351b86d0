"""Calls about terminals: programs on a pty, left and come back to by their id."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from k8e._proto import sandbox_pb2 as pb
from k8e.client.errors import NotFound
from k8e.client.transport import GATED_S, QUICK_S, Transport
from k8e.client.values import Exit

__all__ = ["AsyncTerminal", "TerminalCalls"]

SIGNALLED = 128
"""An exit code above it is a signal's number beyond it."""


class TerminalCalls(Transport):
    async def create_terminal(
        self,
        session_id: str,
        argv: Sequence[str] = ("/bin/bash",),
        *,
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        rows: int = 24,
        cols: int = 80,
    ) -> str:
        """Start a program on a pty and return the terminal's id."""
        request = pb.CreateTerminalRequest(
            session_id=session_id, argv=argv, workdir=workdir, env=env or {}, rows=rows, cols=cols
        )
        return (await self._call(self._stub.CreateTerminal, request, timeout_s=GATED_S)).terminal_id

    async def terminal_output(self, terminal_id: str) -> AsyncIterator[bytes | Exit]:
        """What the terminal showed last, then what it shows from now on, then an `Exit`."""
        request = pb.TerminalStreamRequest(terminal_id=terminal_id)
        async for message in self._streamed(self._stub.TerminalStream, request):
            if message.WhichOneof("frame") == "data":
                yield message.data
            else:
                yield ended(message.exit)

    async def terminal_write(self, terminal_id: str, data: bytes) -> None:
        """Type into it."""
        request = pb.TerminalWriteRequest(terminal_id=terminal_id, data=data)
        await self._call(self._stub.TerminalWrite, request, timeout_s=QUICK_S)

    async def terminal_resize(self, terminal_id: str, rows: int, cols: int) -> None:
        request = pb.TerminalResizeRequest(terminal_id=terminal_id, rows=rows, cols=cols)
        await self._call(self._stub.TerminalResize, request, timeout_s=QUICK_S)

    async def terminal_destroy(self, terminal_id: str, grace_s: float = 0.0) -> None:
        """Hang up, wait at most `grace_s`, then kill what is left."""
        request = pb.TerminalDestroyRequest(terminal_id=terminal_id, grace_ms=int(grace_s * 1000))
        await self._call(self._stub.TerminalDestroy, request, timeout_s=QUICK_S + grace_s)


class AsyncTerminal:
    """A program on a pty; letting go of the object leaves it running."""

    def __init__(self, calls: TerminalCalls, terminal_id: str) -> None:
        self._calls = calls
        self.terminal_id = terminal_id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.destroy()

    async def write(self, data: str | bytes) -> None:
        """Type into it."""
        await self._calls.terminal_write(self.terminal_id, data.encode() if isinstance(data, str) else data)

    async def resize(self, rows: int, cols: int) -> None:
        await self._calls.terminal_resize(self.terminal_id, rows, cols)

    async def output(self) -> AsyncIterator[bytes | Exit]:
        """What it showed last, then what it shows from now on, then an `Exit`."""
        async for item in self._calls.terminal_output(self.terminal_id):
            yield item

    async def destroy(self, grace_s: float = 0.0) -> None:
        """Hang up, wait at most `grace_s`, then kill what is left; harmless when it is gone."""
        with contextlib.suppress(NotFound):
            await self._calls.terminal_destroy(self.terminal_id, grace_s)


def ended(message: pb.TerminalExit) -> Exit:
    # The wire has the signal's name, which not every client's system knows; the exit code has its number.
    signal = max(message.exit_code - SIGNALLED, 0) if message.signal else 0
    return Exit(exit_code=message.exit_code, status="completed", signal=signal)
