"""What a person is asked at a gate: all that will be done if the answer is yes.

The first line says it in short. Lines with names of ours follow, and the lines of a program stand behind a mark. Words from
outside are quoted, so that none of them can pass for ours, and invisible characters are written as escapes. A long program is shown
by its beginning, the places that gates found and its end, and is known by its digest, so nothing is pushed out of sight.
Nothing here waits or looks at anything.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Final, NamedTuple

from k8e.errors import InvalidSpec
from k8e.model import Argv, Code, Command, SecretRef, Shell
from k8e.visible import quoted, shown

__all__ = [
    "HOME",
    "MAX_QUESTION_BYTES",
    "FoundProgram",
    "Wider",
    "command_question",
    "creation_question",
    "file_question",
    "hosts_question",
    "listed",
    "place",
    "word",
    "workspace_question",
    "write_question",
]

HOME: Final = "/workspace"
MAX_QUESTION_BYTES: Final = 24 * 1024
WORD_BYTES: Final = 400
"""Of a name or a path."""
ARGUMENTS_BYTES: Final = 1500
HOSTS_BYTES: Final = 6000
ENVIRONMENT_BYTES: Final = 3000
WIDTH: Final = 100
"""Characters of a line of a program; a longer one goes on below."""
PLACES: Final = 6
"""That are shown, of those which gates have found: the first and the last ones."""
FIRST_LINES, LINES_AROUND, LAST_LINES = 10, 1, 6
"""Of a long program: its beginning, what is around each of those places, and its end."""
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Spans = Sequence[tuple[int, int]]


class FoundProgram(NamedTuple):
    """The file that a command would run, as the sandbox says; empty where there is none."""

    path: str
    real: str
    """The same without links."""


@dataclass(frozen=True, slots=True)
class Wider:
    """What a new list of hosts lets through and the old one did not."""

    opens_network: bool = False
    added: tuple[str, ...] = ()
    lifted: tuple[str, ...] = ()
    """Denials that are taken away."""

    def __bool__(self) -> bool:
        return bool(self.opens_network or self.added or self.lifted)

    def is_within(self, other: Wider) -> bool:
        """Whether whoever approved the other has approved this."""
        opens = other.opens_network or not self.opens_network
        return opens and set(self.added) <= set(other.added) and set(self.lifted) <= set(other.lifted)


# The questions


def hosts_question(wider: Wider) -> str:
    return f"let the session reach {_reached(wider)}"


def creation_question(*, tenant: str, hosts: Wider, secrets: Sequence[SecretRef]) -> str:
    """One question for all that a new session is to have; empty where nobody needs to be asked."""
    wishes = []
    if hosts:
        wishes.append(f"may reach {_reached(hosts)}")
    if secrets:
        named = [f"{word(f'{each.secret_name}:{each.key}')} as {word(each.env_var)}" for each in secrets]
        wishes.append(f"sees the value of {_all(named, most=HOSTS_BYTES, field='secret_refs')}")
    if not wishes:
        return ""
    whose = f" of tenant {word(tenant)}" if tenant else ""
    return f"create a session{whose} that {' and that '.join(wishes)}"


def write_question(path: str, places: Sequence[str], *, size: int, sha256: str, append: bool, perm: int | None) -> str:
    verb = "append" if append else "write"
    mode = f", mode {perm:04o}" if perm is not None else ""
    return f"{verb} {size} bytes to {_located([path], places)} (sha256 {sha256}{mode})"


def file_question(verb: str, paths: Sequence[str], places: Sequence[str]) -> str:
    """`remove "x"`, `move "x" to "y"`, `make the directory "x"`."""
    return f"{verb} {_located(paths, places)}"


def workspace_question(tenant: str) -> str:
    return f"delete the workspace of tenant {word(tenant)} with all its files"


def command_question(
    command: Command, program: FoundProgram, *, gates: Sequence[str], spans: Spans, secrets: Sequence[str] = ()
) -> str:
    """`spans` are the places of the command's text in which the patterns of gates are found; `secrets` are variables.

    Raises: InvalidSpec, when it cannot all be shown.
    """
    match command.what:
        case Argv():
            kind = "command"
        case Shell():
            kind = "shell command"
        case Code(language=language):
            kind = f"{language} program"
    matches = f"which matches the gate{'s' if len(gates) > 1 else ''} {listed(gates)}"
    summary = f"run a {kind} as {word(command.user or 'root')} in {word(command.cwd)}, {matches}"
    if len(spans) > PLACES:
        summary += f" in at least {len(spans)} places, of which {PLACES} are shown"
    return "\n".join([summary, *(f"  {line}" for line in _details(command, program, _some(spans), secrets))])


def _some(spans: Spans) -> Spans:
    return [*spans[: PLACES // 2], *spans[-(PLACES // 2) :]] if len(spans) > PLACES else spans


def _details(command: Command, program: FoundProgram, spans: Spans, secrets: Sequence[str]) -> Iterator[str]:
    yield f"program: {_program(command, program)}"
    if command.env:
        yield f"environment: {_environment(command.env)}"
    if secrets:
        yield f"variables with secrets: {listed(secrets)}"
    if command.terminal is not None:
        yield "input: whatever is typed at its terminal"
    elif command.stdin:
        yield "input: sent by the caller, not shown here"
    match command.what:
        case Argv(argv):
            arguments = listed(argv[1:])
            yield f"arguments: {arguments or 'none'}"
            if arguments != ", ".join(map(quoted, argv[1:])):
                # Some of it is not shown above, but this is.
                yield from (f"matches at: {_around(' '.join(argv), *span)}" for span in spans)
        case Shell(text) | Code(text=text):
            raw, lines = _raw(text), len(text.splitlines())
            plural = "" if lines == 1 else "s"
            yield f"text: {lines} line{plural}, {len(raw)} bytes, sha256 {hashlib.sha256(raw).hexdigest()}"
            yield from _excerpt(text, spans)


def _program(command: Command, program: FoundProgram) -> str:
    called = command.what.argv[0] if isinstance(command.what, Argv) and command.what.argv else ""
    if not program.path:
        return f"{word(called)}, which the sandbox does not find" if called else "the sandbox has none for it"
    named = f", called {word(called)}" if called and called != program.path else ""
    real = f", which is {word(program.real)}" if program.real != program.path else ""
    return f"{word(program.path)}{real}{named}"


def _environment(env: Mapping[str, str]) -> str:
    """All of it: any variable may be the one that makes another program of this."""
    instead = "put it into a file that the command reads"
    size = sum(len(name) + len(value) for name, value in env.items())
    if size > ENVIRONMENT_BYTES:
        raise _too_long(size, most=ENVIRONMENT_BYTES, field="env", instead=instead)
    named = ((name if VARIABLE.fullmatch(name) else quoted(name), value) for name, value in sorted(env.items()))
    words = [f"{name}={quoted(value)}" for name, value in named]
    return _all(words, most=ENVIRONMENT_BYTES, field="env", instead=instead)


def _reached(wider: Wider) -> str:
    def named(entries: Sequence[str]) -> str:
        return _all([word(entry) for entry in entries], most=HOSTS_BYTES, field="allowed_hosts")

    parts = ["the open network"] if wider.opens_network else []
    parts += [named(wider.added)] if wider.added else []
    parts += [f"what was denied until now, {named([entry[1:] for entry in wider.lifted])}"] if wider.lifted else []
    return " and ".join(parts)


def _located(paths: Sequence[str], places: Sequence[str]) -> str:
    """The paths as they were given, and where that really is, if it is elsewhere."""
    named = " to ".join(word(path) for path in paths)
    elsewhere = [each for each in places if each not in {place(path) for path in paths}]
    return f"{named}, which is {' and '.join(map(word, elsewhere))}" if elsewhere else named


def place(path: str) -> str:
    """A path as a request means it: relative ones are below the workspace, and a second slash means nothing."""
    return "/" + posixpath.normpath(posixpath.join(HOME, path)).lstrip("/")


# Words from outside


def word(text: str, *, most: int = WORD_BYTES) -> str:
    """Quoted; a long one by its beginning and its end, and by its digest the whole."""
    if len(text) <= most and len((whole := quoted(text)).encode()) <= most:
        return whole
    raw, half = _raw(text), most // 2
    beginning, end = quoted(_fitting(text, half)), quoted(_fitting(text[::-1], half)[::-1])
    return f"{beginning} … {end} ({len(raw)} bytes, sha256 {hashlib.sha256(raw).hexdigest()})"


def _all(words: Sequence[str], *, most: int, field: str, instead: str = "ask for fewer at once") -> str:
    """Every word, because each of them may be the one that matters. Raises: InvalidSpec, when there are too many."""
    whole = ", ".join(words)
    if len(whole.encode()) > most:
        raise _too_long(len(whole.encode()), most=most, field=field, instead=instead)
    return whole


def _too_long(size: int, *, most: int, field: str, instead: str) -> InvalidSpec:
    text = f"a person has to approve this and can be shown {most} bytes of it, not {size}: {instead}"
    return InvalidSpec(text, field=field)


def listed(texts: Sequence[str]) -> str:
    """Each one quoted; of many the first and the last ones, and by a digest all of them."""
    words = [word(text) for text in texts]
    whole = ", ".join(words)
    if len(whole.encode()) <= ARGUMENTS_BYTES:
        return whole
    first = _as_many(words, ARGUMENTS_BYTES // 2)
    last = _as_many(words[: len(first) - 1 : -1], ARGUMENTS_BYTES // 4)[::-1]
    left_out = len(words) - len(first) - len(last)
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return ", ".join([*first, f"… {left_out} more (sha256 of the whole list {digest}) …", *last])


def _as_many(words: Sequence[str], most: int) -> list[str]:
    taken, used = list[str](), 0
    for each in words:
        used += len(each.encode()) + 2
        if used > most:
            break
        taken.append(each)
    return taken


def _around(text: str, start: int, end: int) -> str:
    """A place of a text with what is beside it: of a long place its beginning."""
    before = _fitting(text[max(start - WORD_BYTES, 0) : start][::-1], WORD_BYTES // 4)[::-1]
    return quoted(before + _fitting(text[start:end], WORD_BYTES // 2) + _fitting(text[end:], WORD_BYTES // 4))


def _fitting(text: str, most: int) -> str:
    """As much of its beginning as is not longer than that when it is quoted."""
    low, high = 0, min(len(text), most)
    while low < high:
        middle = (low + high + 1) // 2
        if len(quoted(text[:middle]).encode()) <= most:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def _raw(text: str) -> bytes:
    """The bytes that a text stands for, also where they are not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


# Programs


def _excerpt(text: str, spans: Spans) -> Iterator[str]:
    """The lines that are shown, each behind a mark, and how many are not in between."""
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    pieces = [list(_pieces(shown(line))) for line in lines]
    firsts = [0, *accumulate(map(len, pieces))]
    shown_lines = [piece for each in pieces for piece in each]

    chosen = {*range(FIRST_LINES), *range(len(shown_lines) - LAST_LINES, len(shown_lines))}
    at = _columns(lines, starts, sorted({offset for span in spans for offset in span}))
    for start, end in spans:
        (line, column), (last_line, last_column) = at[start], at[end]
        first, last = firsts[line] + column // WIDTH, firsts[last_line] + last_column // WIDTH
        chosen |= {*range(first - LINES_AROUND, min(last, first + 1) + LINES_AROUND + 1)}
    for is_chosen, group in groupby(enumerate(shown_lines), key=lambda each: each[0] in chosen):
        part = [line for _, line in group]
        yield from _without_empty(part) if is_chosen else [f"… {len(part)} lines left out …"]


def _columns(lines: Sequence[str], starts: Sequence[int], offsets: Sequence[int]) -> dict[int, tuple[int, int]]:
    """For places of a text in their order: the line, and how far into the line as it is shown. Each part is shown once."""
    made: dict[int, tuple[int, int]] = {}
    number, done, column = -1, 0, 0
    for offset in offsets:
        line = min(bisect_right(starts, offset), len(lines)) - 1
        if line != number:
            number, done, column = line, 0, 0
        inside = offset - starts[line]
        column += len(shown(lines[line][done:inside]))
        done = inside
        made[offset] = (line, column)
    return made


def _pieces(line: str) -> Iterator[str]:
    """A line behind a mark, a long one in several."""
    for start in range(0, max(len(line), 1), WIDTH):
        yield f"{': ' if start else '| '}{line[start : start + WIDTH]}"


def _without_empty(lines: Sequence[str]) -> Iterator[str]:
    """With many empty lines in a row as one."""
    for is_empty, group in groupby(lines, key=lambda line: not line[1:].strip()):
        part = list(group)
        yield from [f"({len(part)} empty lines)"] if is_empty and len(part) > 2 else part
