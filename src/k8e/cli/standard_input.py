"""The standard input of `run`, passed on to the program as it reads, beside the call that runs it.

Each piece says where it belongs, so one that is sent again after a lost connection is taken once. A terminal is never
read: a command in the background would be stopped by that.
"""

from __future__ import annotations

import _thread  # `threading` costs a millisecond
import os
import stat
import sys
import time

from k8e.client.errors import Denied, InvalidRequest, SandboxError
from k8e.client.light.calls import Calls, Request, encoded

__all__ = ["StandardInput", "has_input"]

PIECE = 256 * 1024
FIRST_PAUSE_S = 0.01
LAST_PAUSE_S = 1.0
WRITE_S = 60.0


def has_input() -> bool:
    """Whether standard input is something to pass on: a pipe or a file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return False  # closed
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


class StandardInput:
    """Read by a thread of its own, for whose end nobody waits: it never delays that of the program."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._target: Request | None = None

    def pass_on(self, session_id: str, exec_id: str) -> None:
        """To this program; said again, to that one instead, where the first could not begin."""
        is_running = self._target is not None
        self._target = {"session_id": session_id, "exec_id": exec_id}
        if not is_running:
            _thread.start_new_thread(self._feed, ())

    def _feed(self) -> None:
        offset, is_wanted = 0, True
        try:
            self._deliver(0, b"", is_last=False)  # it has begun
            while is_wanted:
                data = os.read(sys.stdin.fileno(), PIECE)
                offset, is_wanted = self._deliver(offset, data, is_last=not data)
                is_wanted = is_wanted and bool(data)
        except (OSError, SandboxError):
            pass  # of what went wrong the other call tells

    def _deliver(self, offset: int, data: bytes, *, is_last: bool) -> tuple[int, bool]:
        """Hand over one piece, however long it takes: where the next begins, and whether it is wanted."""
        end, pause_s = offset + len(data), FIRST_PAUSE_S
        while True:
            rest = data[len(data) - (end - offset) :]
            request = {**(self._target or {}), "offset": str(offset), "data": encoded(rest), "eof": is_last}
            try:
                answer = self._calls.unary("WriteInput", request, timeout_s=WRITE_S)
            except (InvalidRequest, Denied):
                raise
            except (SandboxError, ValueError):  # the second from a connection that was closed meanwhile
                # It has not begun yet, or its server is being started again; if it has ended, we end with it.
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, LAST_PAUSE_S)
                continue
            if answer.flag("closed") or answer.number("offset") >= end:
                return end, not answer.flag("closed")
            offset = max(offset, answer.number("offset"))
