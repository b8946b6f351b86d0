"""A person at a terminal: shown what is asked, and asked for a word.

What is shown came from whoever wants to be allowed something. Every line of it stands behind a mark of ours, broken before
the terminal would break it, so that no text can end in a line that looks like one of ours.
"""

from __future__ import annotations

import contextlib
import os
import time
import unicodedata
from collections.abc import Iterator

from k8e.client.light.calls import Answer

__all__ = ["agrees", "framed", "terminal"]

YES = {b"y", b"yes"}
WIDE = frozenset("WF")
NARROWEST, USUAL = 20, 80


@contextlib.contextmanager
def terminal() -> Iterator[int | None]:
    """The terminal of this process, wherever its streams go; None where it has none."""
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def agrees(fd: int, asked: Answer, question: str) -> bool:
    """Whether the person says yes; anything else, and the end of input, is a no."""
    width = columns(fd)
    now = int(time.time())
    lines = [
        "An action waits for approval:",
        *framed(asked.text("action"), width),
        f"session   {seen(asked.text('session_id')) or '(to be made)'}",
        f"asked by  {seen(asked.text('asked_by'))}, {max(now - asked.number('asked_at'), 0)} s ago",
        f"expires   in {max(asked.number('expires_at') - now, 0)} s",
        f"{question} [y/N] ",
    ]
    forget_typed(fd)
    os.write(fd, "\n".join(lines).encode("utf-8", "replace"))
    return answer(fd) in YES


def framed(text: str, width: int) -> list[str]:
    """Text behind marks, in lines that fit."""
    return [f"  | {part}" for line in text.split("\n") for part in pieces(seen(line), width - 6)]


def pieces(line: str, width: int) -> Iterator[str]:
    """A line in parts that fit, counted as a terminal shows them: some characters take two columns."""
    part, used = "", 0
    for char in line:
        takes = 2 if unicodedata.east_asian_width(char) in WIDE else 1
        if used + takes > width:
            yield part
            part, used = "", 0
        part += char
        used += takes
    yield part


def seen(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def columns(fd: int) -> int:
    try:
        return max(os.get_terminal_size(fd).columns, NARROWEST) if os.get_terminal_size(fd).columns else USUAL
    except OSError:
        return USUAL


def forget_typed(fd: int) -> None:
    """What was typed or pasted before the question is no answer to it."""
    import termios

    with contextlib.suppress(termios.error):
        termios.tcflush(fd, termios.TCIFLUSH)


def answer(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(fd, 1024)
        if not piece:
            return b""
        line += piece
    return line.strip().lower()
