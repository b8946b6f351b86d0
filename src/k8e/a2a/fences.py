"""Fenced code blocks of a text, as CommonMark has them; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Block", "blocks"]

_OPENING = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<tag>[^\s`]*)(?P<rest>.*)")


@dataclass(frozen=True, slots=True)
class Block:
    tag: str
    """The first word after the opening fence."""
    code: str


def blocks(text: str) -> list[Block] | None:
    """Every block, in order; None when the last one is not closed."""
    found: list[Block] = []
    fence, tag, lines = "", "", list[str]()
    for line in text.replace("\r\n", "\n").split("\n"):
        if fence:
            if _closes(line, fence):
                found.append(Block(tag, "".join(f"{each}\n" for each in lines)))
                fence = ""
            else:
                lines.append(line)
            continue
        opening = _OPENING.fullmatch(line)
        # Behind backticks no further backtick may come: that is code within a line.
        if opening and not (opening["fence"][0] == "`" and "`" in opening["rest"]):
            fence, tag, lines = opening["fence"], opening["tag"], []
    return None if fence else found


def _closes(line: str, fence: str) -> bool:
    """The same sign at least as often, and nothing else."""
    stripped = line.strip()
    indent = len(line) - len(line.lstrip(" "))
    return indent <= 3 and len(stripped) >= len(fence) and stripped == fence[0] * len(stripped)
