"""One member put into or taken out of an object somewhere in a JSON text, and every other byte left where it is.

What is put in looks like what is around it: its line ends, its indentation, one line or many. Each edit is read again
before it is handed out: either the text says exactly what it should, or nothing is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from k8e.errors import InvalidSpec
from k8e.skills.jsonc import SPACE, Broken, Member, Node, Value, gap, place, read

__all__ = ["find", "put", "without"]

UNIT = "  "
COMMENT = re.compile(r"//[^\r\n]*|/\*[\s\S]*?\*/")
SPACES = re.compile(r"[ \t]*")


def find(text: str, path: Sequence[str], *, is_json5: bool = False) -> Value:
    """What stands there; None where nothing does. Raises: Broken, also for what cannot have anything below it."""
    document = Document(text, is_json5)
    return document.found(path)


def put(text: str, path: Sequence[str], value: Value, *, is_json5: bool = False) -> str:
    """The text with this value there, in place of what was there before. Raises: Broken."""
    document = Document(text, is_json5)
    wanted = _with(document.value(), path, value)
    return _checked(document.put(path, value), wanted, is_json5)


def without(text: str, path: Sequence[str], *, is_json5: bool = False) -> str:
    """The text without what stands there, if anything does. Raises: Broken."""
    document = Document(text, is_json5)
    if not document.has(path):
        return text
    return _checked(document.without(path), _lacking(document.value(), path), is_json5)


@dataclass(frozen=True, slots=True)
class Change:
    """A piece of the text, by its ends, and what comes in its place."""

    start: int
    end: int
    text: str = ""


class Document:
    def __init__(self, text: str, is_json5: bool) -> None:
        self.text = text
        self.is_json5 = is_json5
        self.root = read(text, is_json5=is_json5)
        newline = re.search(r"\r?\n", text)
        self.newline = newline[0] if newline else "\n"
        if self.root is not None and self.root.members is None:
            raise Broken("the whole is no object in braces", self.root.start)

    def value(self) -> Value:
        return {} if self.root is None else self.root.value

    def has(self, path: Sequence[str]) -> bool:
        parent, missing = self.walk(path[:-1])
        return parent is not None and not missing and self.member(parent, path[-1]) is not None

    def found(self, path: Sequence[str]) -> Value:
        parent, missing = self.walk(path[:-1])
        member = None if parent is None or missing else self.member(parent, path[-1])
        return member.node.value if member else None

    def walk(self, path: Sequence[str]) -> tuple[Node | None, tuple[str, ...]]:
        """The deepest object that is there, and the names that lead on from it."""
        node = self.root
        if node is None:
            return None, tuple(path)
        for number, key in enumerate(path):
            if (member := self.member(node, key)) is None:
                return node, tuple(path[number:])
            if member.node.members is None:
                raise Broken(f"{key!r} is no object in braces", member.node.start)
            node = member.node
        return node, ()

    def member(self, node: Node, key: str) -> Member | None:
        found = [member for member in node.members or () if member.key == key]
        if len(found) > 1:
            raise Broken(f"{key!r} stands there twice", found[-1].start)
        return found[0] if found else None

    # --- putting in -----------------------------------------------------------------------------------------------

    def put(self, path: Sequence[str], value: Value) -> str:
        node, missing = self.walk(path[:-1])
        if node is None:
            return self.text + self.begun(_nested(path, value))
        if not missing and (member := self.member(node, path[-1])):
            return self.changed(self.replaced(node, member, value))
        key, *below = [*missing, path[-1]]
        inserted = _nested(below, value) if below else value
        return self.changed(*self.inserted(node, key, inserted))

    def begun(self, value: Value) -> str:
        """A whole object, behind whatever comments there are."""
        before = self.newline if self.text and not self.text.endswith(("\n", "\r")) else ""
        return before + self.many_lines(value, "", UNIT) + self.newline

    def replaced(self, node: Node, member: Member, value: Value) -> Change:
        old = member.node
        if self.is_one_line(node) and "\n" not in self.text[old.start : old.end]:
            return Change(old.start, old.end, self.one_line(value))
        return Change(old.start, old.end, self.many_lines(value, self.indentation(member.start), self.unit()))

    def inserted(self, node: Node, key: str, value: Value) -> list[Change]:
        if not node.members:
            return [self.first(node, key, value)]
        last = node.members[-1]
        if self.is_one_line(node):
            between = " " if self.is_spaced() else ""
            text = f"{between}{self.pair(key, self.one_line(value))}"
            if last.comma is None:
                return [Change(last.node.end, last.node.end, f",{text}")]
            return [Change(last.comma + 1, last.comma + 1, f"{text},")]
        indent = self.indentation(node.members[0].start)
        text = f"{self.newline}{indent}{self.pair(key, self.many_lines(value, indent, self.unit()))}"
        if last.comma is None:
            tail = self.tail(last.node.end, node.end - 1)
            return [Change(last.node.end, last.node.end, ","), Change(tail, tail, text)]
        tail = self.tail(last.comma + 1, node.end - 1)
        return [Change(tail, tail, f"{text},")]

    def first(self, node: Node, key: str, value: Value) -> Change:
        """Into an object that has nothing yet, behind its comments."""
        at = self.tail(node.start + 1, node.end - 1)
        is_one_line = self.root and self.root.members and self.is_one_line(self.root)
        if is_one_line and "\n" not in self.text[node.start : node.end]:
            return Change(at, at, self.pair(key, self.one_line(value)))
        base, unit = self.indentation(node.start), self.unit()
        text = f"{self.newline}{base}{unit}{self.pair(key, self.many_lines(value, base + unit, unit))}"
        closing = "" if "\n" in self.text[at : node.end] else self.newline + base
        return Change(at, at, text + closing)

    # --- taking out -----------------------------------------------------------------------------------------------

    def without(self, path: Sequence[str]) -> str:
        node, _ = self.walk(path[:-1])
        if node is None or node.members is None:
            return self.text
        members = node.members
        number = next(each for each, member in enumerate(members) if member.key == path[-1])
        gone = members[number]
        around = self.text[node.start + 1 : gone.start] + self.text[gone.node.end : node.end - 1]
        if len(members) == 1 and not around.strip(SPACE + ","):
            return self.changed(Change(node.start + 1, node.end - 1))
        cuts = self.cuts(gone, after=(members[number - 1].comma or node.start) + 1 if number else node.start + 1)
        if gone.comma is None and number and (comma := members[number - 1].comma) is not None:
            cuts.append(Change(comma, comma + 1))
        return self.changed(*cuts)

    def cuts(self, gone: Member, *, after: int) -> list[Change]:
        """The member, with its line if it has one of its own, and its comma; comments beside it stay."""
        comments = list(COMMENT.finditer(self.text, after, gone.start))
        lead = comments[-1].end() if comments else after
        end = gone.node.end
        comma = end if gone.comma is None else gone.comma
        behind = comma + (gone.comma is not None)
        behind += len(self.spaces(behind))
        is_line_end = self.text[behind : behind + 1] in {"\n", "\r"}
        is_closing = self.text[behind : behind + 1] == "}" and not (comments and comments[-1][0].startswith("//"))
        if is_line_end or is_closing:
            return [Change(lead, end), Change(comma, comma + (gone.comma is not None))]
        # Something follows in the same line: it takes this place, and what stands before keeps the end of its line.
        return [Change(gone.start, end), Change(comma, behind)]

    # --- what the text looks like ---------------------------------------------------------------------------------

    def tail(self, start: int, end: int) -> int:
        """Where the last comment in between ends, or `start` where there is none."""
        tail, until = start, min(gap(self.text, start, is_json5=self.is_json5), end)
        for found in COMMENT.finditer(self.text, start, until):
            tail = found.end()
        return tail

    def is_one_line(self, node: Node) -> bool:
        first = node.members[0].start if node.members else node.end
        return "\n" not in self.text[node.start : first]

    def is_spaced(self) -> bool:
        return not re.search(r'":\S', self.text) or bool(re.search(r'[:,] ["\[{\w]', self.text))

    def indentation(self, position: int) -> str:
        """Of the line that this is in."""
        line = self.text.rfind("\n", 0, position) + 1
        return self.spaces(line)

    def spaces(self, position: int) -> str:
        found = SPACES.match(self.text, position)
        return found[0] if found else ""

    def unit(self) -> str:
        """What one level is indented by, as the first one shows it."""
        if self.root is None or not self.root.members or self.is_one_line(self.root):
            return UNIT
        return self.indentation(self.root.members[0].start).removeprefix(self.indentation(self.root.start)) or UNIT

    def pair(self, key: str, value: str) -> str:
        return f"{json.dumps(key)}:{' ' if self.is_spaced() else ''}{value}"

    def one_line(self, value: Value) -> str:
        separators = (", ", ": ") if self.is_spaced() else (",", ":")
        return json.dumps(value, ensure_ascii=False, separators=separators)

    def many_lines(self, value: Value, indent: str, unit: str) -> str:
        return json.dumps(value, ensure_ascii=False, indent=unit).replace("\n", self.newline + indent)

    def changed(self, *changes: Change) -> str:
        text = self.text
        # From the end to the start, so that places stay true; at one place, what was named first comes first.
        for change in reversed(sorted(changes, key=lambda each: each.start)):
            text = text[: change.start] + change.text + text[change.end :]
        return text


def _nested(path: Sequence[str], value: Value) -> Value:
    for key in reversed(path):
        value = {key: value}
    return value


def _with(whole: Value, path: Sequence[str], value: Value) -> Value:
    if not path:
        return value
    known = whole if isinstance(whole, Mapping) else {}
    return {**known, path[0]: _with(known.get(path[0]), path[1:], value)}


def _lacking(whole: Value, path: Sequence[str]) -> Value:
    if not isinstance(whole, Mapping):
        return whole
    if len(path) == 1:
        return {key: value for key, value in whole.items() if key != path[0]}
    return {**whole, path[0]: _lacking(whole[path[0]], path[1:])}


def _checked(text: str, wanted: Value, is_json5: bool) -> str:
    """An edit that says anything else than it should is a bug of ours, and must never reach a file."""
    try:
        made = read(text, is_json5=is_json5)
    except Broken as error:
        raise InvalidSpec(
            f"cannot be edited safely ({error}, {place(text, error.position)}); edit it by hand"
        ) from error
    if made is None or made.value != wanted:
        raise InvalidSpec("cannot be edited safely; edit it by hand")
    return text
