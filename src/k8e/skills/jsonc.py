"""JSON as people write it in their agents' configs, read into spans of the text: nothing but the text itself is kept.

Comments and commas after the last item are taken everywhere; `is_json5` also takes what JSON5 adds (bare keys, single
quotes, other numbers). Pure: text in, spans out, so that an edit can leave every other byte alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from k8e.errors import InvalidSpec

__all__ = ["Broken", "Member", "Node", "Number", "Value", "gap", "place", "read"]

DEEPEST = 200
SPACE = " \t\r\n"
GAP = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*[\s\S]*?\*/)*")
GAP_5 = re.compile(r"(?:[\s\ufeff]+|//[^\r\n\u2028\u2029]*|/\*[\s\S]*?\*/)*")
STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
STRING_5 = re.compile(
    r'"[^"\\\r\n]*(?:\\(?:\r\n|[\s\S])[^"\\\r\n]*)*"|' + r"'[^'\\\r\n]*(?:\\(?:\r\n|[\s\S])[^'\\\r\n]*)*'"
)
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])", re.ASCII)
NUMBER_5 = re.compile(
    r"[+-]?(?:Infinity|NaN|0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.$])", re.ASCII
)
WORD = re.compile(r"(?:true|false|null)(?![\w$])")
BARE_KEY = re.compile(r"[^\W\d][\w$]*|\$[\w$]*")
ESCAPE_5 = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(\r\n|[\s\S]))")
ESCAPED_5 = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
LINE_ENDS = {"\n", "\r", "\r\n", "\u2028", "\u2029"}
WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}


class Broken(InvalidSpec):
    """The text is not what it should be; `position` says where."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True, slots=True)
class Number:
    """As it is written: no config of ours depends on its value, and none may be changed by reading it."""

    text: str


Value = str | bool | None | Number | Mapping[str, "Value"] | Sequence["Value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A value and where its text begins and ends."""

    start: int
    end: int
    value: Value
    members: tuple[Member, ...] | None = None
    """Of an object, in the order of the text; None for everything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    key: str
    start: int
    """Where its key begins."""
    node: Node
    comma: int | None
    """Where the comma behind it stands, if there is one."""


def place(text: str, position: int) -> str:
    """Where that is, for people."""
    before = text[:position]
    line = before.count("\n") + 1
    return f"line {line}, column {position - (before.rfind(chr(10)) + 1) + 1}"


def gap(text: str, position: int, *, is_json5: bool = False) -> int:
    """Where white space and comments end."""
    found = (GAP_5 if is_json5 else GAP).match(text, position)
    return found.end() if found else position


def read(text: str, *, is_json5: bool = False) -> Node | None:
    """The value that the text is; None where there is nothing but space and comments. Raises: Broken."""
    reader = Reader(text, is_json5)
    start = reader.skip(0)
    if start == len(text):
        return None
    root = reader.value(start, 0)
    if (rest := reader.skip(root.end)) != len(text):
        raise Broken(f"{_shown(text, rest)} after the end of the value", rest)
    return root


class Reader:
    def __init__(self, text: str, is_json5: bool) -> None:
        self.text = text
        self.is_json5 = is_json5

    def skip(self, position: int) -> int:
        end = gap(self.text, position, is_json5=self.is_json5)
        if self.text.startswith("/*", end):
            raise Broken("a comment that does not end", end)
        return end

    def value(self, at: int, depth: int) -> Node:
        if depth > DEEPEST:
            raise Broken(f"more than {DEEPEST} levels deep", at)
        match self.text[at : at + 1]:
            case "{":
                return self.object(at, depth)
            case "[":
                return self.array(at, depth)
            case _:
                return self.scalar(at)

    def scalar(self, at: int) -> Node:
        if found := (STRING_5 if self.is_json5 else STRING).match(self.text, at):
            return Node(start=at, end=found.end(), value=self.string(found[0], at))
        if found := WORD.match(self.text, at):
            return Node(start=at, end=found.end(), value=WORDS[found[0]])
        if found := (NUMBER_5 if self.is_json5 else NUMBER).match(self.text, at):
            return Node(start=at, end=found.end(), value=Number(found[0]))
        raise Broken(f"a value is expected, not {_shown(self.text, at)}", at)

    def string(self, quoted: str, at: int) -> str:
        if self.is_json5:
            # Two escapes may be halves of one character.
            text = ESCAPE_5.sub(_unescaped, quoted[1:-1])
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        try:
            return str(json.loads(quoted))
        except ValueError as error:
            raise Broken("a string with an escape that JSON does not have", at) from error

    def array(self, start: int, depth: int) -> Node:
        items: list[Value] = []
        at = self.skip(start + 1)
        while not self.text.startswith("]", at):
            item = self.value(at, depth + 1)
            items.append(item.value)
            at, _ = self.separator(item.end, "]")
        return Node(start=start, end=at + 1, value=items)

    def object(self, start: int, depth: int) -> Node:
        members: list[Member] = []
        at = self.skip(start + 1)
        while not self.text.startswith("}", at):
            key_at = at
            key, at = self.key(at)
            at = self.skip(at)
            if not self.text.startswith(":", at):
                raise Broken(f"a colon is expected, not {_shown(self.text, at)}", at)
            node = self.value(self.skip(at + 1), depth + 1)
            at, comma = self.separator(node.end, "}")
            members.append(Member(key=key, start=key_at, node=node, comma=comma))
        value = {member.key: member.node.value for member in members}
        return Node(start=start, end=at + 1, value=value, members=tuple(members))

    def key(self, at: int) -> tuple[str, int]:
        if found := (STRING_5 if self.is_json5 else STRING).match(self.text, at):
            return self.string(found[0], at), found.end()
        if self.is_json5 and (found := BARE_KEY.match(self.text, at)):
            return found[0], found.end()
        raise Broken(f"a key in quotes is expected, not {_shown(self.text, at)}", at)

    def separator(self, at: int, closing: str) -> tuple[int, int | None]:
        """Where the next item or the end is, and the comma in front of it."""
        at = self.skip(at)
        if self.text.startswith(",", at):
            return self.skip(at + 1), at
        if self.text.startswith(closing, at):
            return at, None
        raise Broken(f"a comma or {closing} is expected, not {_shown(self.text, at)}", at)


def _unescaped(found: re.Match[str]) -> str:
    if code := found[1] or found[2]:
        return chr(int(code, 16))
    return "" if found[3] in LINE_ENDS else ESCAPED_5.get(found[3], found[3])


def _shown(text: str, at: int) -> str:
    return repr(text[at]) if at < len(text) else "the end of the file"
