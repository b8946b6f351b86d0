"""Commands whose callers may ask for them again: what is kept for one that lost its connection.

A call that names its command itself may be repeated: the command goes on, or has ended, and the second call gets all of
it. The sandbox keeps the end, and of each output stream the last bytes. Here is kept what came before them: on disk, so
that the death of the server loses nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from k8e.byte_budget import ByteReservation
from k8e.engine.file_worker import FileWorker
from k8e.engine.process_stream import STDERR, STDOUT, Output
from k8e.tasks import Tasks

__all__ = ["IN_SANDBOX_BYTES", "KeptOutput", "ResumableCommands"]

_log = logging.getLogger(__name__)

IN_SANDBOX_BYTES: Final = 256 * 1024
"""Of each stream, what the sandbox keeps after we have read it."""
_PIECE_BYTES: Final = 256 * 1024
_KEPT_S: Final = 60.0
"""How long a command that nobody reads may be asked for again, whether its end was told or not."""
_TOLD_PER_SANDBOX: Final = 8
_CHANNELS: Final = (STDOUT, STDERR)

Forget = Callable[[], None]


class KeptOutput:
    """The first bytes of a command's output.

    They are in memory as long as the sandbox has all of them, too, then in one file for each stream. Files are read and
    written off the event loop.
    """

    def __init__(self, directory: Path, files: FileWorker, *, limit: int, reservation: ByteReservation) -> None:
        """`limit` is for each stream; what `reservation` has no room for is not kept, nor is anything after it."""
        self._directory = directory
        self._files = files
        self._limit = limit
        self._reservation = reservation
        self._in_files = dict.fromkeys(_CHANNELS, 0)
        self._in_memory = {channel: bytearray() for channel in _CHANNELS}
        self._is_cut = dict.fromkeys(_CHANNELS, False)
        self._changing = asyncio.Lock()
        """Two readers of one command may be here at once, while one takes over from the other."""
        self._is_closed = False

    def adopt_files(self) -> None:
        """Take up what an earlier server has written. Blocking."""
        self._in_files = {channel: _size_of(self._path(channel)) for channel in _CHANNELS}
        self._reservation.grow(sum(self._in_files.values()))

    async def replay(self) -> AsyncGenerator[Output, None]:
        """Everything that is kept."""
        for channel in _CHANNELS:
            offset = 0
            while piece := await self._read(channel, offset):
                yield Output(channel, offset, piece)
                offset += len(piece)

    async def _read(self, channel: int, offset: int) -> bytes:
        async with self._changing:
            in_files = self._in_files[channel]
            if offset >= in_files:
                return bytes(self._in_memory[channel][offset - in_files :])
            length = min(_PIECE_BYTES, in_files - offset)
            return await self._files.run(functools.partial(_read_piece, self._path(channel), offset, length))

    async def add(self, output: Output) -> None:
        """Keep what is new in it; only after this the sandbox may be told that it was read."""
        channel = output.channel
        async with self._changing:
            end = self._in_files[channel] + len(self._in_memory[channel])
            piece = output.payload[max(0, end - output.offset) : max(0, self._limit - output.offset)]
            if not piece or self._is_cut[channel]:
                return
            if output.offset > end or not self._reservation.grow(len(piece)):
                self._is_cut[channel] = True
                return
            self._in_memory[channel] += piece
            if end + len(piece) > IN_SANDBOX_BYTES:
                await self._files.run(functools.partial(self._write, channel))

    def _write(self, channel: int) -> None:
        """What is in memory, to its file. Blocking."""
        data = self._in_memory[channel]
        if self._is_closed:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with self._path(channel).open("ab") as file:
                file.write(data)
            self._in_files[channel] += len(data)
        except OSError as error:
            # The command goes on; whoever comes back for it is told that something is missing.
            self._is_cut[channel] = True
            _log.warning("cannot keep a command's output", extra={"reason": str(error)})
        self._in_memory[channel] = bytearray()

    def _path(self, channel: int) -> Path:
        return self._directory / str(channel)

    def close(self) -> None:
        """Nobody comes back for it: nothing more is written."""
        self._is_closed = True
        self._reservation.close()

    @property
    def has_files(self) -> bool:
        """Whether there is something to remove, or will be in a moment."""
        return any(self._in_files.values()) or self._changing.locked()

    async def remove_files(self) -> None:
        await self._files.run(functools.partial(shutil.rmtree, self._directory, ignore_errors=True))


@dataclass(slots=True, eq=False)
class _Resumable:
    """One command."""

    title: str
    """In short; empty where only an earlier server knew."""
    started_at: float
    output: KeptOutput | None = None
    timer: asyncio.TimerHandle | None = None
    """Runs while nobody reads it."""
    forget: Forget | None = None
    """Where its end was told: lets the sandbox forget it, too."""


class ResumableCommands:
    """The commands of one sandbox that may be asked for again."""

    def __init__(
        self, directory: Path, files: FileWorker, tasks: Tasks, *, limit: int, reserve: Callable[[], ByteReservation]
    ) -> None:
        self._directory = directory
        self._files = files
        self._tasks = tasks
        self._limit = limit
        self._reserve = reserve
        self._known: dict[str, _Resumable] = {}
        self._told: dict[str, None] = {}
        """Those whose end was told, until it is certain enough that it was heard; oldest first."""

    def extend(self, exec_id: str) -> None:
        """Somebody asks for it, and may be refused: it has its whole time once more."""
        found = self._known.get(exec_id)
        if found is not None and found.timer is not None:
            self._start_timer(exec_id, found)

    def resume(self, exec_id: str, *, title: str, started_at: float) -> None:
        """Somebody reads it: it is not forgotten before they have its end, or have left."""
        found = self._known.setdefault(exec_id, _Resumable(title, started_at))
        # A caller who only comes back for it may not say what it is.
        found.title = found.title or title
        self._told.pop(exec_id, None)
        found.forget = None
        if found.timer is not None:
            found.timer.cancel()
            found.timer = None

    def replay(self, exec_id: str) -> AsyncGenerator[Output, None] | None:
        """Everything that is kept of its output; None where nothing is."""
        found = self._known.get(exec_id)
        return found.output.replay() if found is not None and found.output is not None else None

    async def add(self, exec_id: str, output: Output) -> None:
        """Keep this of a command that is being read."""
        found = self._known.get(exec_id)
        if found is None:
            return
        if found.output is None:
            found.output = self._new_output(exec_id)
        await found.output.add(output)

    def _new_output(self, exec_id: str) -> KeptOutput:
        return KeptOutput(self._directory / exec_id, self._files, limit=self._limit, reservation=self._reserve())

    def described(self, exec_id: str) -> tuple[str, float] | None:
        """What it is, and when it was started, as long as it may be asked for."""
        found = self._known.get(exec_id)
        return (found.title, found.started_at) if found is not None else None

    def remove(self, exec_id: str) -> None:
        """Nobody comes back for it."""
        self._told.pop(exec_id, None)
        found = self._known.pop(exec_id, None)
        if found is None:
            return
        if found.timer is not None:
            found.timer.cancel()
        if found.output is not None:
            found.output.close()
            if found.output.has_files:
                self._tasks.start(found.output.remove_files(), name=f"remove the output of {exec_id}")
        if found.forget is not None:
            found.forget()

    def end_told(self, exec_id: str, forget: Forget) -> None:
        """Call `forget` after a while, or when the ends of enough others have been told since."""
        found = self._known.get(exec_id)
        if found is None:
            forget()
            return
        found.forget = forget
        self._told[exec_id] = None
        self._start_timer(exec_id, found)
        if len(self._told) > _TOLD_PER_SANDBOX:
            self.remove(next(iter(self._told)))

    def abandon(self, exec_id: str) -> None:
        """Nobody reads it now: what is kept of it goes after a while, unless somebody comes back."""
        if (found := self._known.get(exec_id)) is not None:
            self._start_timer(exec_id, found)

    def _start_timer(self, exec_id: str, command: _Resumable) -> None:
        if command.timer is not None:
            command.timer.cancel()
        command.timer = asyncio.get_running_loop().call_later(_KEPT_S, self.remove, exec_id)

    def adopt(self) -> None:
        """Keep for a while what an earlier server kept."""
        for path in self._directory.glob("*"):
            output = self._new_output(path.name)
            output.adopt_files()
            self._known[path.name] = command = _Resumable("", 0.0, output)
            self._start_timer(path.name, command)

    def sandbox_ended(self) -> None:
        """Nobody comes back for anything of it."""
        for exec_id in list(self._known):
            self.remove(exec_id)

    def close(self) -> None:
        """Leave everything as it is for the next server."""
        for command in self._known.values():
            if command.timer is not None:
                command.timer.cancel()


def _read_piece(path: Path, offset: int, length: int) -> bytes:
    """Empty where it cannot be read: whoever reads on finds that something is missing."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return os.pread(file.fileno(), length, offset)
    return b""


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
