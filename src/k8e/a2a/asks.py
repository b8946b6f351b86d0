"""What a message asks for, read off its parts; pure.

Code runs only where it is marked as code: by a data part, which is exact, by a fenced block or a `$ ` before each line,
or by the part's own metadata. Prose is never taken for a command: one that sounds like `rm` would be obeyed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from a2a.types import Message, Part
from google.protobuf.json_format import MessageToDict

from k8e.a2a.fences import Block, blocks
from k8e.a2a.paths import workspace_path

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "HOW_TO_ASK",
    "LANGUAGES",
    "MAX_TIMEOUT_S",
    "Ask",
    "Program",
    "Unusable",
    "Upload",
    "read",
]

DEFAULT_TIMEOUT_S = 300.0
MAX_TIMEOUT_S = 3600.0
MAX_PARTS = 64

HOW_TO_ASK = (
    "Nothing was run: this agent runs code and does not read prose. Send a fenced code block with its language "
    "(```python, ```node, ```ts, ```bash or ```sh), lines that begin with `$ `, or a data part such as "
    '{"code": "print(1)", "language": "python"}, {"command": "ls -l"} or {"read": "out.csv"}.'
)

LANGUAGES: Mapping[str, str] = {
    **dict.fromkeys(("python", "python3", "py"), "python"),
    **dict.fromkeys(("node", "nodejs", "javascript", "js"), "node"),
    **dict.fromkeys(("ts", "typescript"), "ts"),
    "bash": "bash",
    **dict.fromkeys(("sh", "shell"), "sh"),
}
"""What a language may be called, and what we call it; `sh` is a command for `/bin/sh -c`, which every image has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Something to run."""

    code: str
    language: str
    timeout_s: float = DEFAULT_TIMEOUT_S
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file to write first."""

    path: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """First the files, then the programs one after the other until one fails, then what is to be given back."""

    uploads: tuple[Upload, ...] = ()
    programs: tuple[Program, ...] = ()
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """Why a message asks for nothing that could be done."""

    text: str
    is_open: bool
    """Whether another message may mend it; else the message itself is wrong."""


def read(message: Message) -> Ask | Unusable:
    """What is to be done."""
    try:
        ask = _read(message.parts)
    except _Refused as refused:
        return Unusable(text=str(refused), is_open=False)
    if ask.uploads or ask.programs or ask.reads:
        return ask
    return Unusable(text=HOW_TO_ASK, is_open=True)


class _Refused(Exception):
    """The text says what is wrong with which part."""


def _read(parts: Sequence[Part]) -> Ask:
    if len(parts) > MAX_PARTS:
        raise _Refused(f"more than {MAX_PARTS} parts")
    uploads = tuple(_uploads(parts))
    exact = [_data(part) for part in parts if part.WhichOneof("content") == "data"]
    programs = tuple(program for each in exact for program in each.programs)
    reads = tuple(path for each in exact for path in each.reads)
    # Beside an exact request text only explains it.
    if not exact:
        texts = (part for part in parts if part.WhichOneof("content") == "text")
        programs = tuple(program for part in texts for program in _text(part))
    return Ask(uploads=uploads, programs=programs, reads=reads)


def _uploads(parts: Sequence[Part]) -> Iterator[Upload]:
    taken: set[str] = set()
    for part in parts:
        match part.WhichOneof("content"):
            case "url":
                # SAFETY: an address fetched from here would be reached with this machine's network, not the sandbox's.
                raise _Refused("files by url are not fetched: send the bytes, or fetch it from inside the sandbox")
            case "raw":
                path = _path(part.filename, "filename")
                if path in taken:
                    raise _Refused(f"filename: {part.filename!r} comes twice")
                taken.add(path)
                yield Upload(path=path, data=part.raw)
            case None:
                raise _Refused("a part has no content")


def _text(part: Part) -> Iterator[Program]:
    tag = part.metadata.fields["language"].string_value if "language" in part.metadata.fields else ""
    if tag:
        yield Program(code=part.text, language=_language(tag))
        return
    lines = [line for line in part.text.splitlines() if line.strip()]
    if lines and all(line.startswith("$ ") for line in lines):
        yield Program(code="\n".join(line[2:] for line in lines), language="sh")
        return
    found = blocks(part.text)
    if found is None:
        raise _Refused("a code block is not closed: the message may have been cut off, so nothing of it was run")
    yield from _fenced(found)


def _fenced(found: Sequence[Block]) -> Iterator[Program]:
    known = [block for block in found if block.tag.lower() in LANGUAGES]
    # A block of another kind (json, text, output) explains; a lone one without any tag is what was meant.
    plain = [block for block in found if not block.tag]
    for block in known or (plain if len(plain) == 1 else ()):
        yield Program(code=block.code, language=LANGUAGES.get(block.tag.lower(), "sh"))


FIELDS = frozenset({"code", "command", "language", "timeout", "workdir", "env", "read"})


def _data(part: Part) -> Ask:
    given = MessageToDict(part.data)
    if not isinstance(given, dict):
        raise _Refused(f"a data part must be an object; {_example()}")
    if unknown := sorted(given.keys() - FIELDS):
        raise _Refused(f"unknown in a data part: {', '.join(unknown)[:200]}; {_example()}")
    kinds = given.keys() & {"code", "command", "read"}
    if len(kinds) != 1:
        raise _Refused(f"a data part needs exactly one of code, command and read; {_example()}")
    if "read" in kinds:
        return Ask(reads=tuple(_path(each, "read") for each in _listed(given["read"])))
    return Ask(programs=(_program(given),))


def _program(given: Mapping[str, object]) -> Program:
    if "command" in given:
        code, language = _string(given["command"], "command"), "sh"
        if "language" in given:
            raise _Refused("language: goes with code; a command is for the shell")
    else:
        code = _string(given["code"], "code")
        language = _language(_string(given.get("language", "python"), "language"))
    return Program(
        code=code,
        language=language,
        timeout_s=_timeout(given.get("timeout", DEFAULT_TIMEOUT_S)),
        workdir=_string(given.get("workdir", ""), "workdir", may_be_empty=True),
        env=_env(given.get("env", {})),
    )


def _example() -> str:
    return (
        'for instance {"code": "print(1)", "language": "python", "timeout": 60}, {"command": "ls"}, {"read": "a.csv"}'
    )


def _string(value: object, name: str, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or may_be_empty):
        raise _Refused(f"{name}: must be text" + ("" if may_be_empty else " and not empty"))
    return value


def _language(tag: str) -> str:
    try:
        return LANGUAGES[tag.lower()]
    except KeyError:
        raise _Refused(f"language: {tag[:40]!r} is unknown; known are {', '.join(sorted(LANGUAGES))}") from None


def _timeout(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TIMEOUT_S:
        raise _Refused(f"timeout: must be seconds, more than 0 and at most {MAX_TIMEOUT_S:.0f}")
    return float(value)


def _env(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise _Refused("env: must be an object of texts")
    return value


def _listed(value: object) -> Sequence[object]:
    listed = value if isinstance(value, list) else [value]
    if not 0 < len(listed) <= MAX_PARTS:
        raise _Refused(f"read: must name 1 to {MAX_PARTS} files")
    return listed


def _path(name: object, what: str) -> str:
    path = workspace_path(_string(name, what))
    if path is None:
        raise _Refused(f"{what}: {str(name)[:100]!r} must be a path below /workspace, without `..`")
    return path
