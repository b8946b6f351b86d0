"""Terminals: open, stream, type, resize, signal, close."""

from __future__ import annotations

import signal as signals

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import fields
from k8e.doors.service.call import Call
from k8e.engine.engine import Engine
from k8e.errors import InvalidSpec
from k8e.model import Outcome, TerminalSize

__all__ = ["TerminalRpcs"]

EDGE = 10_000
"""No screen has more rows or columns; the kernel's field would wrap at 65,536."""
DEFAULT_GRACE_S = 5.0
MAX_GRACE_S = 60.0

SIGNALS = {
    pb.TERMINAL_SIGNAL_INT: signals.SIGINT,
    pb.TERMINAL_SIGNAL_TERM: signals.SIGTERM,
    pb.TERMINAL_SIGNAL_KILL: signals.SIGKILL,
    pb.TERMINAL_SIGNAL_TSTP: signals.SIGTSTP,
    pb.TERMINAL_SIGNAL_HUP: signals.SIGHUP,
}


class TerminalRpcs:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def CreateTerminal(self, call: Call, request: pb.CreateTerminalRequest) -> pb.CreateTerminalResponse:
        if not request.argv:
            raise InvalidSpec("is required", field="argv")
        view = await self._engine.create_terminal(
            call.owner,
            fields.session_id(request.session_id),
            argv=tuple(fields.clean(each, "argv", limit=fields.ENV_TOTAL_BYTES) for each in request.argv),
            cwd=fields.path(request.workdir, b"", "workdir", default="/workspace"),
            env=fields.environment(request.env),
            size=size(request.rows or 24, request.cols or 80),
            asked_by=call.caller.identity,
        )
        return pb.CreateTerminalResponse(terminal_id=view.terminal_id, pid=view.pid)

    async def TerminalStream(self, call: Call, request: pb.TerminalStreamRequest) -> None:
        async for item in self._engine.open_terminal(call.owner, fields.terminal_id(request.terminal_id)):
            if isinstance(item, Outcome):
                ended = pb.TerminalExit(exit_code=item.exit_code, signal=signal_name(item.signal))
                await call.write(pb.TerminalStreamResponse(exit=ended))
            else:
                await call.write(pb.TerminalStreamResponse(data=item))

    async def TerminalWrite(self, call: Call, request: pb.TerminalWriteRequest) -> pb.TerminalWriteResponse:
        await self._engine.write_terminal(call.owner, fields.terminal_id(request.terminal_id), request.data)
        return pb.TerminalWriteResponse(ok=True)

    async def TerminalResize(self, call: Call, request: pb.TerminalResizeRequest) -> pb.TerminalResizeResponse:
        terminal_id = fields.terminal_id(request.terminal_id)
        await self._engine.resize_terminal(call.owner, terminal_id, size(request.rows, request.cols))
        return pb.TerminalResizeResponse(ok=True)

    async def TerminalForeground(
        self, call: Call, request: pb.TerminalForegroundRequest
    ) -> pb.TerminalForegroundResponse:
        group, waiting = await self._engine.foreground(call.owner, fields.terminal_id(request.terminal_id))
        return pb.TerminalForegroundResponse(process_group_id=group, input_waiting=waiting)

    async def TerminalSignal(self, call: Call, request: pb.TerminalSignalRequest) -> pb.TerminalSignalResponse:
        if request.signal not in SIGNALS:
            raise InvalidSpec("is not one of INT, TERM, KILL, TSTP, HUP", field="signal")
        terminal_id = fields.terminal_id(request.terminal_id)
        group = await self._engine.signal_terminal(call.owner, terminal_id, SIGNALS[request.signal])
        return pb.TerminalSignalResponse(process_group_id=group)

    async def TerminalDestroy(self, call: Call, request: pb.TerminalDestroyRequest) -> pb.TerminalDestroyResponse:
        given_s = fields.offset(request.grace_ms, "grace_ms") / 1000
        grace_s = min(given_s, MAX_GRACE_S) if request.HasField("grace_ms") else DEFAULT_GRACE_S
        await self._engine.destroy_terminal(call.owner, fields.terminal_id(request.terminal_id), grace_s=grace_s)
        return pb.TerminalDestroyResponse(ok=True)


def size(rows: int, cols: int) -> TerminalSize:
    for value, field in ((rows, "rows"), (cols, "cols")):
        if not 0 < value <= EDGE:
            raise InvalidSpec(f"must be 1-{EDGE}", field=field)
    return TerminalSize(rows=rows, cols=cols)


def signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name if number else ""
    except ValueError:
        return f"SIG{number}"
