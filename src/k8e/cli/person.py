"""A person at a terminal: shown what is asked, and asked for a word.

What is shown came from whoever wants to be allowed something. Every line of it stands behind a mark of ours, broken before
the terminal would break it, so that no text can end in a line that looks like one of ours. What is longer than the screen is shown
page by page, so that nothing of it goes by unseen.
"""

from __future__ import annotations

import contextlib
import os
import time
import unicodedata
from collections.abc import Iterator

from k8e.client.light.calls import Answer
from k8e.visible import shown

__all__ = ["agrees", "framed", "pieces", "read_through", "size", "terminal"]

YES = {b"y", b"yes"}
WIDE = frozenset("WFA")
"""Also those whose width is the terminal's choice: a line that is broken too early is still one line."""
NARROWEST, FEWEST, USUAL = 20, 8, (24, 80)


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
    rows, columns = size(fd)
    now = int(time.time())
    heading = "A call waits for approval. It is to:" if asked.flag("is_gate") else "An agent asks, in its own words:"
    action = framed(asked.text("action"), columns)
    end = [
        f"session   {shown(asked.text('session_id')) or '(to be made)'}",
        f"asked by  {shown(asked.text('asked_by'))}, {max(now - asked.number('asked_at'), 0)} s ago",
        f"expires   in {max(asked.number('expires_at') - now, 0)} s",
        f"{question} [y/N] ",
    ]
    forget_typed(fd)
    if 1 + len(action) + len(end) > rows:
        if not read_through(fd, [heading, *action], rows):
            return False
        # The first line says what is to be done, and is out of sight by now.
        heading, action = "In short:", action[:1]
    write(fd, "\n".join([heading, *action, *end]))
    return answer(fd) in YES


def read_through(fd: int, lines: list[str], rows: int) -> bool:
    """Show lines page by page, so that none of them goes by unseen; whether the person has come to the end."""
    page = max(rows - 1, 1)
    for start in range(0, len(lines), page):
        left = len(lines) - start - page
        more = f"{left} more lines" if left > 0 else "that is all"
        write(fd, "\n".join([*lines[start : start + page], f"({more}: Enter to go on, anything else to stop) "]))
        if answer(fd) != b"":
            return False
    return True


def framed(text: str, width: int) -> list[str]:
    """Text behind marks, in lines that fit. What goes on below has another mark: it is no new line."""
    parts = (enumerate(pieces(shown(line), width - 6)) for line in text.split("\n"))
    return [f"  {'>' if number else '|'} {part}" for line in parts for number, part in line]


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


def size(fd: int) -> tuple[int, int]:
    """Rows and columns of a terminal, or those of most where it does not say."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        columns, rows = 0, 0
    return max(rows, FEWEST) if rows else USUAL[0], max(columns, NARROWEST) if columns else USUAL[1]


def write(fd: int, text: str) -> None:
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(fd, data) :]


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
