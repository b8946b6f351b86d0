"""`shell`: an interactive terminal in a session, as if it were here.

The keyboard goes to the session key by key, its size follows the window's, and the terminal here is put back however
the command ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from k8e.cli.keyboard import key_by_key
from k8e.cli.sharing import in_session
from k8e.client.errors import SandboxError, ServerFailed
from k8e.client.light.calls import Calls, encoded

__all__ = ["open_shell"]

PIECE = 64 * 1024
END_OF_INPUT = b"\x04"
WINDOW_CHANGED = b"w"
SHELL = ("/bin/bash",)
ROWS, COLUMNS = 24, 80


def open_shell(args: argparse.Namespace, calls: Calls) -> int:
    terminal_id = in_session(args, calls, lambda session_id: create(args, calls, session_id))
    try:
        with key_by_key(is_raw=True), typing(calls, terminal_id):
            return shown(calls, terminal_id)
    finally:
        # It has ended by itself, unless we were interrupted or lost the connection.
        with contextlib.suppress(SandboxError):
            calls.unary("TerminalDestroy", {"terminal_id": terminal_id, "grace_ms": 100})


def create(args: argparse.Namespace, calls: Calls, session_id: str) -> str:
    rows, columns = size()
    request = {
        "session_id": session_id,
        "argv": args.argv or list(SHELL),
        "env": {"TERM": os.environ.get("TERM", "xterm")},
        "rows": rows,
        "cols": columns,
    }
    return calls.unary("CreateTerminal", request).text("terminal_id")


def size() -> tuple[int, int]:
    """The window's rows and columns now."""
    try:
        columns, rows = os.get_terminal_size(sys.stdin.fileno())
    except OSError:
        return ROWS, COLUMNS
    return rows or ROWS, columns or COLUMNS


def shown(calls: Calls, terminal_id: str) -> int:
    for frame in calls.stream("TerminalStream", [{"terminal_id": terminal_id}]):
        if frame.has("exit"):
            return frame.one("exit").number("exit_code")
        sys.stdout.buffer.write(frame.data("data"))
        sys.stdout.buffer.flush()
    raise ServerFailed("the server ended the terminal without an exit code")


@contextlib.contextmanager
def typing(calls: Calls, terminal_id: str) -> Iterator[None]:
    """Pass on keys and the window's size beside the output."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def changed(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(writer, WINDOW_CHANGED)

    window = getattr(signal, "SIGWINCH", None)
    before = signal.signal(window, changed) if window else None
    thread = threading.Thread(target=pass_on, args=(calls, terminal_id, reader), name="keyboard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if window:
            signal.signal(window, before)
        os.close(writer)
        thread.join()
        os.close(reader)


def pass_on(calls: Calls, terminal_id: str, wake: int) -> None:
    """Until the other end of `wake` is closed, or the terminal is gone."""
    import select

    keyboard = sys.stdin.fileno()
    watched = [keyboard, wake]
    with contextlib.suppress(SandboxError):
        while True:
            ready, _, _ = select.select(watched, [], [])
            if wake in ready:
                if not os.read(wake, 64):
                    return
                rows, columns = size()
                calls.unary("TerminalResize", {"terminal_id": terminal_id, "rows": rows, "cols": columns})
            elif keyboard in ready:
                keys = os.read(keyboard, PIECE)
                calls.unary("TerminalWrite", {"terminal_id": terminal_id, "data": encoded(keys or END_OF_INPUT)})
                if not keys:
                    watched = [wake]
