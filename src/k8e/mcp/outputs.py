"""Output of a command on its way into an answer, and all of it in a file of its session where an answer has no room for it.

There a model reads on, or searches it, and a client finds it as a resource. The file counts towards the session's disk and
goes with the session; of the files that one client's calls have left, the oldest are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator, Sequence

import mcp_types as types

from k8e.client.errors import SandboxError
from k8e.mcp.bounds import Ends, Part, needed_bytes, shares, shorter, shown
from k8e.mcp.calls import ToolCall
from k8e.mcp.contents import TEXT
from k8e.mcp.resources import OUTPUTS, links_to
from k8e.mcp.results import Fields, encoded
from k8e.mcp.scope import OutputFile

__all__ = ["KEPT_BYTES", "Output", "closing", "end_all"]

KEPT_BYTES = 8 * 1024 * 1024
"""Of one stream, in a file."""
PIECE = 256 * 1024
"""Added to the file at a time."""
REASON_CHARS = 500
PATIENCE_S = 10.0
"""For one change of a file: a sandbox that takes longer does not hold up the answer."""


class Output:
    """One stream of a command."""

    def __init__(self, call: ToolCall, session_id: str, name: str, most_chars: int) -> None:
        self.name = name
        self._call = call
        self._most = needed_bytes(most_chars)
        """With more bytes than these it is too long for an answer, whatever they are; so many are held anyway."""
        self._ends = Ends(self._most)
        self._unkept: bytearray | None = None
        """What is not in the file yet; None as long as it may not need one."""
        self._file = OutputFile(session_id, f"{OUTPUTS}/{secrets.token_hex(6)}.{name}")
        self._kept = 0
        self._is_begun = False
        """Whether its file may be there."""
        self._failure = ""
        self.part = Part("", 0, 0, 0)
        """As it is shown; known when it has ended."""
        self.exact: bytes | None = None
        """Its first bytes, where they are asked for; known when it has ended."""

    @property
    def chars(self) -> int:
        return self._ends.chars()

    @property
    def exact_chars(self) -> int:
        """Of all its bytes in base64."""
        return (self._ends.total + 2) // 3 * 4

    @property
    def is_short(self) -> bool:
        """Whether the answer has less than all of it."""
        return self.part.is_cut or (self.exact is not None and len(self.exact) < self._ends.total)

    async def add(self, data: bytes) -> None:
        """As it comes; waits while a part of it is written to the file."""
        if self._unkept is None and self._ends.total + len(data) > self._most:
            self._unkept = bytearray(self._ends.first)
        self._ends.add(data)
        if self._unkept is not None and not self._failure:
            self._unkept += data[: max(0, KEPT_BYTES - self._kept - len(self._unkept))]
            if len(self._unkept) >= PIECE:
                await self._keep(self._unkept)

    async def end(self, chars: int, exact_chars: int | None) -> None:
        """Nothing more comes, and the answer has room for so many characters of it, and of its bytes in base64."""
        self.part = shown(self._ends, chars)
        self.exact = None if exact_chars is None else self._ends.first[: exact_chars // 4 * 3]
        unkept = bytearray(self._ends.first) if self._unkept is None else self._unkept
        if self.is_short and unkept and not self._failure:
            await self._keep(unkept)

    def close(self) -> None:
        """Whatever became of it: its file is no longer written."""
        self._call.scope.outputs.end(self._file, is_kept=self._is_begun)

    async def _keep(self, unkept: bytearray) -> None:
        """To the end of the file; where that fails, now or later, nothing of it is kept."""
        data = bytes(unkept)
        unkept.clear()
        has_room, removed = self._call.scope.outputs.grow(self._file, len(data))
        for each in removed:
            await self._remove(each)
        self._failure = "" if has_room else "other calls keep as much as there is room for"
        if not self._failure and not self._kept:
            self._failure = await self._refusal()
        if not self._failure:
            # Before it is written: a call that is cancelled meanwhile leaves a file that has to be counted.
            self._is_begun = True
            self._failure = await self._append(data)
        if not self._failure:
            self._kept += len(data)
            return
        self._kept = 0
        if self._is_begun:
            # On a full disk the part that was written would be in the way of everything else.
            await self._remove(self._file)
            self._is_begun = False
        self.close()

    async def _refusal(self) -> str:
        """Why nothing is written in this session; empty where it may be."""
        try:
            gates = (await self._call.client.get(self._file.session_id)).gates
        except SandboxError as error:
            return shorter(str(error), REASON_CHARS)
        return "a person has to allow what is written in this session" if gates.write_paths else ""

    async def _append(self, data: bytes) -> str:
        """Why not; empty where it is done."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._call.client.write_file(*self._file, data, "a")
        except TimeoutError:
            return "the sandbox did not take it in time"
        except SandboxError as error:
            return shorter(str(error), REASON_CHARS)
        return ""

    async def _remove(self, file: OutputFile) -> None:
        with contextlib.suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._call.client.remove(*file)

    def fields(self) -> Fields:
        """What the answer says of it."""
        fields: Fields = {self.name: self.part.text}
        if self.exact is not None:
            fields[f"{self.name}_base64"] = encoded(self.exact)
        if self._kept:
            fields[f"{self.name}_file"] = self._file.path
        return fields

    def note(self) -> str:
        """What the answer has no room for, and how to read it; empty where it has all."""
        if not self.is_short:
            return ""
        part, total, said = self.part, self._ends.total, list[str]()
        if part.is_cut:
            said.append(f"{self.name} is too long: bytes {part.begin} to {part.end} of {total} are left out.")
        if self.exact is not None and len(self.exact) < total:
            said.append(f"{self.name}_base64 has the first {len(self.exact)} of {total} bytes.")
        if not self._kept:
            said.append(f"The rest is not kept ({self._failure}): run it again with its output in a file.")
        else:
            what = "All of it is" if self._kept == total else f"The first {self._kept} bytes are"
            session = f"session_id {self._file.session_id}, " if self._call.session_id else ""
            said.append(
                f"{what} in {self._file.path}: read on with sandbox_read_file ({session}that path, offset {part.begin}), or "
                "search it, as with grep."
            )
        return " ".join(said)

    def links(self) -> list[types.ResourceLink]:
        """To what is left out, where it is kept."""
        if not self._kept:
            return []
        return links_to(
            self._call.context.protocol_version,
            self._file.session_id,
            self._file.path,
            title=f"What is left out of {self.name}, page by page",
            mime_type=TEXT,
            size=self._kept,
            offset=self.part.begin,
        )


@contextlib.contextmanager
def closing(*outputs: Output) -> Iterator[None]:
    try:
        yield
    finally:
        for each in outputs:
            each.close()


async def end_all(outputs: Sequence[Output], most: int, *, is_exact: bool = False) -> None:
    """Nothing more comes, and the answer has room for so many characters of them together."""
    wanted = [each.chars for each in outputs] + [each.exact_chars for each in outputs if is_exact]
    given = shares(wanted, most)
    for number, each in enumerate(outputs):
        await each.end(given[number], given[len(outputs) + number] if is_exact else None)
