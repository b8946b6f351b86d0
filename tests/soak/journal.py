"""What clients of a soak write down, one line each, so that a kill at any moment loses nothing that was said.

A client's own words are all that counts afterwards: what it was told is acknowledged, whatever became of it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["Book", "Journal", "Kind", "Run"]

Kind = Literal["call", "session", "leaving", "run", "checked", "wrong"]


@dataclass(frozen=True, slots=True)
class Run:
    """A background run that the server acknowledged, and what must come of it."""

    session_id: str
    run_id: str
    lines: int
    code: int

    @property
    def output(self) -> bytes:
        return b"".join(b"%d\n" % number for number in range(1, self.lines + 1)) + b"end\n"

    def command(self, seconds: float) -> str:
        return f"seq {self.lines}; sleep {seconds:.2f}; echo end; exit {self.code}"


class Journal:
    """The writing side."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, kind: Kind, *facts: object) -> None:
        os.write(self._descriptor, json.dumps([kind, *facts]).encode() + b"\n")


@dataclass(slots=True)
class Book:
    """The reading side: the sum of all journals in a directory."""

    directory: Path
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    refusals: list[tuple[float, float, str]] = field(default_factory=list)
    """Calls that nobody answered, or only at the second try: when they began and ended, and which."""
    runs: dict[str, Run] = field(default_factory=dict)
    """Those whose result nobody has checked yet."""
    checked: int = 0
    sessions: dict[str, set[str]] = field(default_factory=dict)
    """By journal."""
    wrong: list[str] = field(default_factory=list)
    _read: dict[Path, int] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """Those that were answered: nobody counts knocking at a closed door."""
        return self.outcomes["ok"]

    def read(self) -> None:
        """Everything that was written since the last time; an unfinished line waits."""
        for path in sorted(self.directory.glob("*.journal")):
            for kind, *facts in self._news(path):
                self._enter(path.stem, kind, facts)

    def _news(self, path: Path) -> Iterator[list[object]]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            whole, line, _ = file.read().rpartition(b"\n")
        self._read[path] = self._read.get(path, 0) + len(whole) + len(line)
        yield from (json.loads(text) for text in whole.splitlines())

    def _enter(self, who: str, kind: object, facts: list[object]) -> None:
        match kind, facts:
            case "call", [str(name), str(outcome), float(begun), float(ended)]:
                self._enter_call(name, outcome, begun, ended)
            case "session", [str(sid)]:
                self.sessions.setdefault(who, set()).add(sid)
            case "leaving", [str(sid)]:
                self.sessions[who].discard(sid)
            case "run", [str(sid), str(run_id), int(lines), int(code)]:
                self.runs[run_id] = Run(sid, run_id, lines, code)
            case "checked", [str(run_id)]:
                del self.runs[run_id]
                self.checked += 1
            case "wrong", [str(text)]:
                self.wrong.append(text)
            case _:
                raise AssertionError((who, kind, facts))

    def _enter_call(self, name: str, outcome: str, begun: float, ended: float) -> None:
        self.outcomes[outcome] += 1
        if outcome == "ok":
            self.kinds[name] += 1
            self.slowest_s = max(self.slowest_s, ended - begun)
        elif outcome in {"Unreachable", "NotFound"}:
            self.refusals.append((begun, ended, name))
