"""Rows as columns for people: aligned, with times and sizes in words, and nothing that moves the cursor."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from k8e.visible import shown

__all__ = ["duration", "lines", "size"]

TIMES = ("_at", "last_used", "modified", "time")
EMPTY = "-"


def lines(rows: Sequence[Mapping[str, object]], columns: Sequence[str] = ()) -> list[str]:
    """A heading and one line per row."""
    names = list(columns) or (list(rows[0]) if rows else [])
    cells = [[shown(name.upper()) for name in names], *([cell(name, row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
        if names
    ]


def cell(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return shown(",".join(map(str, value))) or EMPTY
    if isinstance(value, dict):
        return shown(",".join(f"{key}={each}" for key, each in value.items())) or EMPTY
    if name.endswith(TIMES) and isinstance(value, int | float):
        return date(value) if value else EMPTY
    if name.endswith("_bytes") and isinstance(value, int):
        return size(value)
    if name.endswith("_ms") and isinstance(value, int):
        return duration(value)
    return shown(str(value if value is not None else "")) or EMPTY


def date(seconds: float) -> str:
    """In local time; a number that no calendar has stays one."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, OSError, ValueError):
        return str(seconds)


def duration(milliseconds: int) -> str:
    """In the two largest units."""
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, hours = milliseconds // 60_000, milliseconds // 3_600_000
    if not hours:
        return f"{minutes} min {milliseconds // 1000 % 60} s"
    return f"{hours} h {minutes % 60} min"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
