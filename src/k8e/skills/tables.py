"""One table put into or taken out of a TOML text, and every other byte left where it is.

A small scanner finds where statements begin and end; what they mean is the standard library's word, before and after:
an edit either says exactly what it should or is refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from k8e.errors import InvalidSpec
from k8e.skills.jsonc import Broken, Value

__all__ = ["find", "put", "without"]

STRINGS = (
    re.compile(r'"""[\s\S]*?(?<!\\)(?:\\\\)*"""{1,3}'),
    re.compile(r"'''[\s\S]*?'''{1,3}"),
    re.compile(r'"(?:[^"\\\r\n]|\\.)*"'),
    re.compile(r"'[^'\r\n]*'"),
)
COMMENT = re.compile(r"#[^\n]*")
BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
WHERE = re.compile(r"\(at line (\d+), column (\d+)\)")
BY_HAND = "it is written in a form that is not edited here (an inline table or dotted keys); edit it by hand"


def find(text: str, path: Sequence[str]) -> Value:
    """What stands there; None where nothing does. Raises: Broken."""
    value: object = loaded(text)
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return _plain(value)


def put(text: str, path: Sequence[str], value: Mapping[str, Value]) -> str:
    """The text with this table, in place of the one that was there. Raises: Broken, InvalidSpec."""
    wanted = _with(loaded(text), path, value)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [f"[{'.'.join(map(_key, path))}]", *(f"{_key(key)} = {_written(each)}" for key, each in value.items())]
    table = newline.join(lines)
    if region := _region(text, path):
        made = text[: region.start] + table + text[region.end :]
    else:
        ended = "" if not text or text.endswith("\n") else newline
        blank = "" if not text or text.endswith(("\n\n", "\n\r\n")) else newline
        made = f"{text}{ended}{blank}{table}{newline}"
    return _checked(made, wanted)


def without(text: str, path: Sequence[str]) -> str:
    """The text without that table, if it is there. Raises: Broken, InvalidSpec."""
    if find(text, path) is None:
        return text
    if (region := _region(text, path)) is None:
        raise InvalidSpec(BY_HAND)
    start, end = region.start, region.end
    end += len(_line_end(text, end))
    # The empty line that sets a table apart goes with it.
    before = re.search(r"(?:(?<=\n)|\A)[ \t]*\r?\n\Z", text[:start])
    if before:
        start = before.start()
    return _checked(text[:start] + text[end:], _lacking(loaded(text), path))


def loaded(text: str) -> Mapping[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Broken(WHERE.sub("", str(error)).strip(), _position(text, str(error))) from error


def _position(text: str, message: str) -> int:
    """tomllib says where only in words."""
    found = WHERE.search(message)
    if not found:
        return len(text)
    lines = text.replace("\r\n", "\n").split("\n")[: int(found[1]) - 1]
    extra = 1 + ("\r\n" in text)
    return sum(len(line) + extra for line in lines) + int(found[2]) - 1


@dataclass(frozen=True, slots=True)
class Statement:
    """A table's header or a key with its value; without the comment behind it."""

    start: int
    end: int
    is_header: bool


def _statements(text: str) -> Iterator[Statement]:
    at = 0
    while at < len(text):
        if text[at] in " \t\r\n":
            at += 1
        elif text[at] == "#":
            at = _skipped(text, at)
        else:
            end = _statement_end(text, at)
            yield Statement(at, at + len(text[at:end].rstrip()), text[at] == "[")
            at = end


def _statement_end(text: str, at: int) -> int:
    depth = 0
    while at < len(text):
        if text[at] == "#" and not depth:
            return at
        if text[at] == "\n" and not depth:
            return at
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(text[at], 0)
        at = _skipped(text, at)
    return at


def _skipped(text: str, at: int) -> int:
    """Behind the comment, the string or the character here."""
    if text[at] == "#":
        found = COMMENT.match(text, at)
        return found.end() if found else at + 1
    for string in STRINGS if text[at] in "\"'" else ():
        if found := string.match(text, at):
            return found.end()
    return at + 1


def _region(text: str, path: Sequence[str]) -> Statement | None:
    """From the table's header to its last line; None where it has no header of its own, or parts elsewhere."""
    found: Statement | None = None
    is_inside = False
    for each in _statements(text):
        if each.is_header:
            named = _header(text[each.start : each.end])
            is_inside = named[: len(path)] == tuple(path)
            if is_inside and found is None and named != tuple(path):
                return None
        if is_inside:
            found = Statement(found.start if found else each.start, each.end, True)
    return found


def _header(text: str) -> tuple[str, ...]:
    value: object = tomllib.loads(text)
    path: list[str] = []
    while isinstance(value, Mapping) and value:
        [(key, value)] = value.items()
        path.append(key)
    return tuple(path)


def _line_end(text: str, at: int) -> str:
    """The rest of the line, if nothing is on it."""
    found = re.compile(r"[ \t]*\r?\n").match(text, at)
    return found[0] if found else ""


def _key(key: str) -> str:
    return key if BARE.match(key) else json.dumps(key)


def _written(value: Value) -> str:
    if isinstance(value, str):
        # A basic string of TOML has JSON's escapes, but for one character that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_written(each)}' for key, each in value.items())} }}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_written, value))}]"
    raise InvalidSpec(f"{value!r} has no place in a table")


def _plain(value: object) -> Value:
    """Numbers and times are nobody's here; what they are is of no interest, only that they are."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | bool) or value is None else repr(value)


def _with(whole: Mapping[str, object], path: Sequence[str], value: object) -> Mapping[str, object]:
    below = whole.get(path[0])
    known = below if isinstance(below, Mapping) else {}
    if path[1:] and below is not None and not isinstance(below, Mapping):
        raise InvalidSpec(f"{path[0]} is no table")
    return {**whole, path[0]: value if len(path) == 1 else _with(known, path[1:], value)}


def _lacking(whole: Mapping[str, object], path: Sequence[str]) -> Mapping[str, object]:
    if len(path) == 1:
        return {key: value for key, value in whole.items() if key != path[0]}
    below = whole[path[0]]
    left = _lacking(below, path[1:]) if isinstance(below, Mapping) else {}
    # A table that only existed by the names of others goes with the last of them.
    return {**whole, path[0]: left} if left else {key: value for key, value in whole.items() if key != path[0]}


def _checked(text: str, wanted: Mapping[str, object]) -> str:
    try:
        made = loaded(text)
    except Broken as error:
        raise InvalidSpec(BY_HAND) from error
    if _pruned(made) != _pruned(wanted):
        raise InvalidSpec(BY_HAND)
    return text


def _pruned(value: Mapping[str, object]) -> Mapping[str, object]:
    """Without empty tables: whether one that nothing is left in is still named makes no difference."""
    kept = {key: _pruned(each) if isinstance(each, Mapping) else each for key, each in value.items()}
    return {key: each for key, each in kept.items() if each != {}}
