"""Where a person is asked before a call goes on: given the gates and what is asked for, the question, or none.

Nothing here waits or looks at anything. A question says all that it is about: the exact hosts, the place with the size
and the digest of what is written there, the command's own text, so that whoever reads it decides on this and nothing else.
Text that comes from outside is shown so that it cannot pretend to be something else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from k8e.errors import HostUnsupported, InvalidSpec
from k8e.model import Argv, Code, Command, EgressMode, Gates, SecretRef, SessionSpec, Shell

__all__ = [
    "command_action",
    "command_length",
    "command_match",
    "creation_action",
    "file_action",
    "gates_from",
    "gates_to_json",
    "hosts_action",
    "is_held",
    "normal",
    "parse",
    "shown",
    "union",
    "widened",
    "workspace_action",
    "write_action",
]

HOME: Final = "/workspace"
FLAGS: Final = ("egress", "workspace", "secrets")
MOST: Final = 64
"""Paths or patterns of one session."""
PATH_BYTES: Final = 4096
PATTERN_CHARS: Final = 512
PATTERN_MEMORY: Final = 1 << 18
"""What one pattern may take when it is compiled and searched."""
SHOWN_BYTES: Final = 600
"""Of a text from outside, in a question: more than a person reads, and four of them within what a question may hold."""
LIST_BYTES: Final = 1200


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
        _searching(pattern)
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
                f"{shown(entry)!r} is none of {', '.join(FLAGS)}, write=PATH, command=PATTERN", field="gates"
            )
    named = {name: name in flags for name in FLAGS}
    return normal(Gates(**named, write_paths=tuple(lists["write"]), commands=tuple(lists["command"])))


def gates_from(fields: Mapping[str, Any]) -> Gates:
    """As they were written down; what is missing is not gated."""
    lists = {name: tuple(fields[name]) for name in ("write_paths", "commands") if name in fields}
    return Gates(**{**fields, **lists})


def gates_to_json(gates: Gates) -> dict[str, Any]:
    """What there is of them."""
    return {name: value for name, value in dataclasses.asdict(gates).items() if value}


# What is gated


def widened(old: SessionSpec, new: SessionSpec) -> tuple[str, ...]:
    """What the new list lets through and the old one did not, entry by entry: what is added, and denials taken away.

    An entry that another one covers counts, too: an entry is what a person can judge.
    """
    added = [entry for entry in new.allowed_hosts if entry not in old.allowed_hosts and not entry.startswith("!")]
    lifted = [entry for entry in old.allowed_hosts if entry not in new.allowed_hosts and entry.startswith("!")]
    opened = ["the open network"] if new.network is EgressMode.OPEN and old.network is not EgressMode.OPEN else []
    return (*opened, *added, *(f"{entry[1:]} (until now denied)" for entry in lifted))


def is_held(gates: Gates, path: str, *, above: bool = False) -> bool:
    """Whether a path, taken by its letters, is at or below a gated one; with `above`, also whether it takes one along.

    Where links lead only the sandbox can say; this is what holds whatever it says.
    """
    place = _place(path)
    return any(_is_at_or_below(place, gate) or (above and _is_at_or_below(gate, place)) for gate in gates.write_paths)


def command_length(command: Command) -> int:
    return len(_command_text(command))


def command_match(gates: Gates, command: Command) -> str:
    """The first pattern that is found in a command's text, or nothing."""
    if not gates.commands:
        return ""
    text = _plain(_command_text(command))
    return next((pattern for pattern in gates.commands if _searching(pattern)(text)), "")


# What is asked


def hosts_action(entries: Sequence[str]) -> str:
    return f"let the session reach {_listed(entries)}"


def creation_action(*, tenant: str, hosts: Sequence[str], secrets: Sequence[SecretRef]) -> str:
    """One question for all that a new session is to have; empty where nobody needs to be asked."""
    wishes = []
    if hosts:
        wishes.append(f"may reach {_listed(hosts)}")
    if secrets:
        named = [f"{each.secret_name}:{each.key} as {each.env_var}" for each in secrets]
        wishes.append(f"sees {_listed(named)}")
    if not wishes:
        return ""
    whose = f" of tenant {shown(tenant)}" if tenant else ""
    return f"create a session{whose} that {' and that '.join(wishes)}"


def write_action(path: str, places: Sequence[str], *, size: int, sha256: str, append: bool, perm: int | None) -> str:
    verb = "append" if append else "write"
    mode = f", mode {perm:04o}" if perm is not None else ""
    return f"{verb} {size} bytes to {_located(path, places)} (sha256 {sha256}{mode})"


def file_action(verb: str, paths: Sequence[str], places: Sequence[str]) -> str:
    """`remove x`, `move x to y`, `make the directory x`."""
    named = f"{verb} {' to '.join(shown(path) for path in paths)}"
    elsewhere = [place for place in places if place not in {_place(path) for path in paths}]
    return f"{named}, which is {' and '.join(shown(each) for each in elsewhere)}" if elsewhere else named


def workspace_action(tenant: str) -> str:
    return f"delete the workspace of tenant {shown(tenant)} with all its files"


def command_action(pattern: str, command: Command) -> str:
    text = _command_text(command)
    kind = f"{command.what.language} program" if isinstance(command.what, Code) else "command"
    user = f" as {shown(command.user)}" if command.user else ""
    return f"run the {kind}{user} in {shown(command.cwd)}, which matches {shown(pattern)}: {shown(text)}"


def shown(text: str, *, most: int = SHOWN_BYTES) -> str:
    """Text from outside on one line: what cannot be seen, or would end the line, stands there by its number.

    Of a long one the beginning, and by its digest the whole.
    """
    plain = "".join(char if char.isprintable() else _escaped(char) for char in text[:most])
    if len(text) <= most and len(plain.encode()) <= most:
        return plain
    raw = text.encode("utf-8", "surrogatepass")
    beginning = plain.encode()[:most].decode("utf-8", "ignore")
    return f"{beginning}… ({len(raw)} bytes, sha256 {hashlib.sha256(raw).hexdigest()})"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def _listed(entries: Sequence[str]) -> str:
    return shown(", ".join(entries), most=LIST_BYTES)


def _located(path: str, places: Sequence[str]) -> str:
    elsewhere = [place for place in places if place != _place(path)]
    return f"{shown(path)}, which is {' and '.join(shown(each) for each in elsewhere)}" if elsewhere else shown(path)


def _place(path: str) -> str:
    """A path as a request means it: relative ones are below the workspace, and a second slash means nothing."""
    return "/" + posixpath.normpath(posixpath.join(HOME, path)).lstrip("/")


def _gate_path(path: str) -> str:
    if not path or "\0" in path or len(path.encode("utf-8", "surrogateescape")) > PATH_BYTES:
        raise InvalidSpec(f"{shown(path)!r} is not a path", field="gates.write_paths")
    return _place(path)


def _is_at_or_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _command_text(command: Command) -> str:
    match command.what:
        case Argv(argv):
            return " ".join(argv)
        case Shell(text) | Code(text=text):
            return text


def _plain(text: str) -> str:
    """Text that a pattern can be searched in, whatever bytes it was."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@lru_cache(maxsize=256)
def _searching(pattern: str) -> Callable[[str], object]:
    """A search for a pattern, in time that grows with the text and not faster. Raises: InvalidSpec, HostUnsupported."""
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
        search: Callable[[str], object] = re2.compile(pattern, options).search
    except re2.error as error:
        raise InvalidSpec(
            f"{shown(pattern)} is not a pattern (RE2): {_reason(error)}", field="gates.commands"
        ) from error
    return search


def _reason(error: Exception) -> str:
    told: Iterable[object] = error.args
    return " ".join(each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in told)
