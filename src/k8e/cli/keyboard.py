"""A terminal's keyboard read key by key, and put back however the block is left."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from k8e.client.errors import Unsupported

__all__ = ["key_by_key"]


@contextlib.contextmanager
def key_by_key(*, is_raw: bool) -> Iterator[None]:
    """Keys as they are typed, without an echo; raw, also those that would send a signal, such as Ctrl-C.

    Where standard input is no terminal, nothing is changed.
    """
    if not sys.stdin.isatty():
        yield
        return
    try:
        import termios
        import tty
    except ImportError as error:
        raise Unsupported("an interactive terminal needs a system with termios; use `run` instead") from error
    before = termios.tcgetattr(sys.stdin)
    restored = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        # What was typed already is kept.
        (tty.setraw if is_raw else tty.setcbreak)(sys.stdin, termios.TCSADRAIN)
        yield
    finally:
        with contextlib.suppress(termios.error):  # it was hung up: there is nothing left to put back
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        for number, handler in restored.items():
            signal.signal(number, handler)


def leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
