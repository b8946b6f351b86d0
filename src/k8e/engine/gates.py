"""Where a person is asked before a call goes on: given the gates and what is asked for, whether somebody is.

Nothing here waits or looks at anything. What is asked then is in `questions`.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from k8e.engine.questions import Wider, place, word
from k8e.errors import HostUnsupported, InvalidSpec
from k8e.model import Argv, Code, Command, EgressMode, Gates, SessionSpec, Shell

__all__ = [
    "CommandMatch",
    "command_length",
    "command_match",
    "is_held",
    "normal",
    "parse",
    "union",
    "widened",
]

FLAGS: Final = ("egress", "workspace", "secrets")
MOST: Final = 64
"""Paths or patterns of one session."""
PATH_BYTES: Final = 4096
PATTERN_CHARS: Final = 512
MOST_PLACES: Final = 1000
"""That are looked for in one command with one pattern."""
MOST_SEARCH_S: Final = 2.0
"""Of computing, for all patterns and one command."""
SURROGATES: Final = re.compile("[\ud800-\udfff]")
PATTERN_MEMORY: Final = 1 << 18
"""What one pattern may take when it is compiled and searched."""


class CommandMatch(NamedTuple):
    """The patterns that are found in a command's text, and the places where, as far as they are counted."""

    patterns: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]


def union(*several: Gates) -> Gates:
    """All that any of them asks for."""
    return Gates(
        egress=any(each.egress for each in several),
        write_paths=tuple(dict.fromkeys(path for each in several for path in each.write_paths)),
        workspace=any(each.workspace for each in several),
        secrets=any(each.secrets for each in several),
        commands=tuple(dict.fromkeys(pattern for each in several for pattern in each.commands)),
    )


def normal(gates: Gates) -> Gates:
    """Each path in one form and each pattern one that can be searched. Raises: InvalidSpec, HostUnsupported."""
    for name, given in (("write_paths", gates.write_paths), ("commands", gates.commands)):
        if len(given) > MOST:
            raise InvalidSpec(f"has more than {MOST} entries", field=f"gates.{name}")
    for pattern in gates.commands:
        _finding(pattern)
    return dataclasses.replace(gates, write_paths=tuple(dict.fromkeys(_gate_path(path) for path in gates.write_paths)))


def parse(entries: Iterable[str]) -> Gates:
    """Gates as people write them: `egress`, `workspace`, `secrets`, `write=PATH`, `command=PATTERN`. Raises: InvalidSpec."""
    flags, lists = set[str](), {"write": list[str](), "command": list[str]()}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if name in lists and value:
            lists[name].append(value)
        elif name in FLAGS and not equals:
            flags.add(name)
        else:
            raise InvalidSpec(
                f"{word(entry)} is none of {', '.join(FLAGS)}, write=PATH, command=PATTERN", field="gates"
            )
    named = {name: name in flags for name in FLAGS}
    return normal(Gates(**named, write_paths=tuple(lists["write"]), commands=tuple(lists["command"])))


# What is gated


def widened(old: SessionSpec, new: SessionSpec) -> Wider:
    """What the new list lets through and the old one did not, entry by entry: what is added, and denials taken away.

    An entry that another one covers counts, too: an entry is what a person can judge.
    """
    added = (entry for entry in new.allowed_hosts if entry not in old.allowed_hosts and not entry.startswith("!"))
    lifted = (entry for entry in old.allowed_hosts if entry not in new.allowed_hosts and entry.startswith("!"))
    opens = new.network is EgressMode.OPEN and old.network is not EgressMode.OPEN
    return Wider(opens, tuple(added), tuple(lifted))


def is_held(gates: Gates, path: str, *, above: bool = False) -> bool:
    """Whether a path, taken by its letters, is at or below a gated one; with `above`, also whether it takes one along.

    Where links lead only the sandbox can say; this is what holds whatever it says.
    """
    there = place(path)
    return any(_is_at_or_below(there, gate) or (above and _is_at_or_below(gate, there)) for gate in gates.write_paths)


def _places(pattern: str, text: str, until: float) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for found in islice(_finding(pattern)(text), MOST_PLACES):
        spans.append(found.span())
        if time.thread_time() > until:
            break
    if time.thread_time() > until:
        raise InvalidSpec(f"takes too long to search for {word(pattern)}: write it to a file first", field="command")
    return spans


def command_length(command: Command) -> int:
    return len(_command_text(command))


def command_match(gates: Gates, command: Command) -> CommandMatch | None:
    """Where patterns are found in a command's text; None where none is. Takes a while: not for an event loop.

    Raises: InvalidSpec, when that takes too long: what was not searched to its end must not pass.
    """
    if not gates.commands:
        return None
    text, until = _plain(_command_text(command)), time.thread_time() + MOST_SEARCH_S
    found = {pattern: _places(pattern, text, until) for pattern in gates.commands}
    patterns = tuple(pattern for pattern, spans in found.items() if spans)
    return (
        CommandMatch(patterns, tuple(sorted(span for spans in found.values() for span in spans))) if patterns else None
    )


def _gate_path(path: str) -> str:
    if not path or "\0" in path or len(path.encode("utf-8", "surrogateescape")) > PATH_BYTES:
        raise InvalidSpec(f"{word(path)} is not a path", field="gates.write_paths")
    return place(path)


def _is_at_or_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _command_text(command: Command) -> str:
    match command.what:
        case Argv(argv):
            return " ".join(argv)
        case Shell(text) | Code(text=text):
            return text


def _plain(text: str) -> str:
    """Text that a pattern can be searched in, whatever bytes it was; every character stays where it is."""
    return SURROGATES.sub("\ufffd", text)


@lru_cache(maxsize=256)
def _finding(pattern: str) -> Callable[[str], Iterator[Any]]:
    """Finds a pattern everywhere; each search takes time that grows with the text and not faster. Raises: InvalidSpec, HostUnsupported."""
    if not pattern or len(pattern) > PATTERN_CHARS:
        raise InvalidSpec(f"use 1-{PATTERN_CHARS} characters", field="gates.commands")
    try:
        import re2  # type: ignore[import-untyped]  # has no types; only sessions with such a gate need it
    except ModuleNotFoundError as error:
        raise HostUnsupported(f"patterns for commands need more: pip install 'k8e[server]' ({error})") from error
    # SAFETY: Python's own `re` can be made to search for hours by a pattern or by a text, and holds up everybody else
    # meanwhile; RE2 has neither backtracking nor back references, and its memory is bounded.
    options = re2.Options()
    options.max_mem, options.never_capture, options.log_errors = PATTERN_MEMORY, True, False
    try:
        finding: Callable[[str], Iterator[Any]] = re2.compile(pattern, options).finditer
    except re2.error as error:
        raise InvalidSpec(
            f"{word(pattern)} is not a pattern (RE2): {_reason(error)}", field="gates.commands"
        ) from error
    return finding


def _reason(error: Exception) -> str:
    told: Iterable[object] = error.args
    return " ".join(each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in told)
