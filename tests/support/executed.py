"""Documents whose command lines are run as they stand: one shell per document, block after block.

A block of `sh` that is followed by one of `json` or `text` must print that; … stands for what differs from one time to
the next. A block of `sh person` is what somebody else does meanwhile, with an identity of their own: `$ID` is what they
are asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k8e.client import SandboxClient

__all__ = ["Block", "Person", "Shell", "blocks", "follow", "shell"]

FENCE = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ANSWERS = {"json", "text"}
PATIENCE_S = 300.0
PAUSE_S = 0.05
# Commands must not find the list of blocks on their standard input.
LOOP = 'while read -r block; do . "$block" </dev/null; printf "\\n=== ended %s ===\\n" "$?"; done'
ENDED = re.compile(rb"\n=== ended (\d+) ===\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    text: str
    answer: str | None
    is_persons: bool

    def matches(self, printed: str) -> bool:
        if self.answer is None:
            return '"error"' not in printed
        return re.fullmatch(_pattern(_lines(self.answer)), _lines(printed), re.DOTALL) is not None


def blocks(document: str) -> list[Block]:
    found = [(match[1], match[2] or "", match[3]) for match in FENCE.finditer(document)]
    made: list[Block] = []
    for number, (language, who, text) in enumerate(found):
        if language == "sh":
            after = found[number + 1] if number + 1 < len(found) else ("", "", "")
            answer = after[2] if after[0] in ANSWERS else None
            made.append(Block(text=text, answer=answer, is_persons=who == "person"))
    return made


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who may approve, and sees what waits for them."""

    client: SandboxClient
    environ: Mapping[str, str]
    before: frozenset[str]
    """What already waited when they came: others' questions, which they leave alone."""

    @classmethod
    def coming(cls, client: SandboxClient, environ: Mapping[str, str]) -> Person:
        return cls(client, environ, frozenset(each.approval_id for each in client.approvals()))

    def act(self, block: Block) -> None:
        done = subprocess.run(
            ["bash", "-c", block.text],
            env={**self.environ, "ID": self._asked()},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}{done.stdout}{done.stderr}"

    def _asked(self) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not (waiting := {each.approval_id for each in self.client.approvals()} - self.before):
            assert time.monotonic() < deadline
            time.sleep(PAUSE_S)
        (asked,) = waiting
        return asked


class Shell:
    """One bash that lives as long as its document."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, errors: Path) -> None:
        self._process = process
        self._directory = directory
        self._errors = errors
        self._count = 0
        self._unread = b""

    def begin(self, block: Block) -> None:
        self._count += 1
        file = self._directory / f"block-{self._count}.sh"
        file.write_text(block.text, encoding="utf-8")
        assert self._process.stdin is not None
        self._process.stdin.write(f"{file}\n".encode())
        self._process.stdin.flush()

    def end(self, block: Block) -> None:
        """Raises: AssertionError when it failed or printed something else."""
        printed, code = self._read()
        said = self._errors.read_text(encoding="utf-8", errors="replace")[-2000:]
        assert code == 0, f"{block.text}ended with {code}:\n{printed}{said}"
        assert block.matches(printed), f"{block.text}printed\n{printed}\nand not\n{block.answer}\n{said}"

    def _read(self) -> tuple[str, int]:
        assert self._process.stdout is not None
        while not (found := ENDED.search(self._unread)):
            more = os.read(self._process.stdout.fileno(), 65536)
            assert more, self._errors.read_text(encoding="utf-8", errors="replace")[-2000:]
            self._unread += more
        printed, self._unread = self._unread[: found.start()], self._unread[found.end() :]
        return printed.decode(), int(found[1])


@contextlib.contextmanager
def shell(directory: Path, environ: Mapping[str, str]) -> Iterator[Shell]:
    """In a directory of its own; what it starts must have ended with it."""
    work, errors = directory / "work", directory / "stderr"
    work.mkdir()
    with (
        errors.open("wb") as said,
        subprocess.Popen(
            ["bash", "-c", LOOP],
            cwd=work,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
        ) as process,
    ):
        try:
            yield Shell(process, directory, errors)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def follow(document: Sequence[Block], here: Shell, person: Person | None = None) -> None:
    """Do what it says, in its order; a person's block while the one before it waits."""
    waiting: Block | None = None
    for number, block in enumerate(document):
        if block.is_persons:
            assert person is not None, "nobody is there to do it"
            person.act(block)
            if waiting is not None:
                here.end(waiting)
                waiting = None
            continue
        here.begin(block)
        is_followed = number + 1 < len(document) and document[number + 1].is_persons
        if is_followed:
            waiting = block
        else:
            here.end(block)


def _lines(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line)


def _pattern(shown: str) -> str:
    return ".*?".join(map(re.escape, shown.split("…")))
