"""Commands whose callers may ask for them again: what is kept for one that lost its connection.

A call that names its command itself may be repeated: the command goes on, or has ended, and the second call gets all of
it. The sandbox keeps the end, and of each output stream the last bytes. Here is kept what came before them: on disk, so
that the death of the server loses nothing of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from k8e.byte_budget import ByteReservation
from k8e.engine.process_stream import STDERR, STDOUT, Output

__all__ = ["IN_SANDBOX_BYTES", "KeptOutput", "ResumableCommands"]

_log = logging.getLogger(__name__)

IN_SANDBOX_BYTES: Final = 256 * 1024
"""Of each stream, what the sandbox keeps after we have read it."""
_PIECE_BYTES: Final = 256 * 1024
_KEPT_S: Final = 60.0
"""How long after its end was told a command may be asked for again."""
_DELIVERED_PER_SANDBOX: Final = 8
_CHANNELS: Final = (STDOUT, STDERR)

Forget = Callable[[], None]


class KeptOutput:
    """The first bytes of a command's output.

    They are in memory as long as the sandbox has all of them, too, then in one file for each stream.
    """

    def __init__(self, directory: Path, *, limit: int, reservation: ByteReservation) -> None:
        """`limit` is for each stream; what `reservation` has no room for is not kept, nor is anything after it."""
        self._directory = directory
        self._limit = limit
        self._reservation = reservation
        self._has_files = directory.is_dir()
        self._written = {channel: _size_of(self._path(channel)) if self._has_files else 0 for channel in _CHANNELS}
        self._unwritten = {channel: bytearray() for channel in _CHANNELS}
        self._is_cut = dict.fromkeys(_CHANNELS, False)
        reservation.grow(sum(self._written.values()))

    def replay(self) -> Iterator[Output]:
        """Everything that is kept."""
        for channel in _CHANNELS:
            offset = 0
            while piece := self._read(channel, offset):
                yield Output(channel, offset, piece)
                offset += len(piece)

    def _read(self, channel: int, offset: int) -> bytes:
        written = self._written[channel]
        if offset >= written:
            return bytes(self._unwritten[channel][offset - written :])
        with self._path(channel).open("rb") as file:
            return os.pread(file.fileno(), min(_PIECE_BYTES, written - offset), offset)

    def add(self, output: Output) -> None:
        """Keep what is new in it; only after this the sandbox may be told that it was read."""
        channel, end = output.channel, self._written[output.channel] + len(self._unwritten[output.channel])
        piece = output.payload[max(0, end - output.offset) : max(0, self._limit - output.offset)]
        if not piece or self._is_cut[channel]:
            return
        if output.offset > end or not self._reservation.grow(len(piece)):
            self._is_cut[channel] = True
            return
        self._unwritten[channel] += piece
        if end + len(piece) > IN_SANDBOX_BYTES:
            self._write(channel)

    def _write(self, channel: int) -> None:
        data, self._unwritten[channel] = self._unwritten[channel], bytearray()
        try:
            if not self._has_files:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._has_files = True
            with self._path(channel).open("ab") as file:
                file.write(data)
            self._written[channel] += len(data)
        except OSError as error:
            # The command goes on; whoever comes back for it is told that something is missing.
            self._is_cut[channel] = True
            _log.warning("cannot keep a command's output", extra={"reason": str(error)})

    def _path(self, channel: int) -> Path:
        return self._directory / str(channel)

    def remove(self) -> None:
        """Nobody comes back for it."""
        self._reservation.close()
        if self._has_files:
            shutil.rmtree(self._directory, ignore_errors=True)


class ResumableCommands:
    """The commands of one sandbox that may be asked for again."""

    def __init__(self, directory: Path, *, limit: int, reserve: Callable[[], ByteReservation]) -> None:
        self._directory = directory
        self._limit = limit
        self._reserve = reserve
        self._kept: dict[str, KeptOutput] = {}
        self._delivered: dict[str, tuple[asyncio.TimerHandle, Forget]] = {}
        """Commands whose end was told, until it is certain enough that it was heard; oldest first."""
        self._abandoned: dict[str, asyncio.TimerHandle] = {}
        """Commands that nobody reads, until it is certain enough that nobody comes back for them."""

    def keep(self, exec_id: str) -> KeptOutput:
        """What is kept of a command's output; nothing yet for one that is new."""
        if exec_id not in self._kept:
            self._kept[exec_id] = KeptOutput(self._directory / exec_id, limit=self._limit, reservation=self._reserve())
        return self._kept[exec_id]

    def remove(self, exec_id: str) -> None:
        """Nobody comes back for its output."""
        if (timer := self._abandoned.pop(exec_id, None)) is not None:
            timer.cancel()
        if (kept := self._kept.pop(exec_id, None)) is not None:
            kept.remove()

    def end_delivered(self, exec_id: str, forget: Forget) -> None:
        """Its end was told: call `forget` after a while, or when enough others have ended since."""
        self.resume(exec_id)
        timer = asyncio.get_running_loop().call_later(_KEPT_S, self._forget, exec_id)
        self._delivered[exec_id] = (timer, forget)
        if len(self._delivered) > _DELIVERED_PER_SANDBOX:
            self._forget(next(iter(self._delivered)))

    def resume(self, exec_id: str) -> None:
        """Somebody asks for it: it is not forgotten before its end is told once more."""
        if (found := self._delivered.pop(exec_id, None)) is not None:
            found[0].cancel()
        if (timer := self._abandoned.pop(exec_id, None)) is not None:
            timer.cancel()

    def adopt(self) -> None:
        """Keep for a while what an earlier server kept."""
        for path in self._directory.glob("*"):
            self.keep(path.name)
            self.abandon(path.name)

    def abandon(self, exec_id: str) -> None:
        """Nobody reads it now: what is kept of it goes after a while, unless somebody comes back."""
        self.resume(exec_id)
        self._abandoned[exec_id] = asyncio.get_running_loop().call_later(_KEPT_S, self.remove, exec_id)

    def sandbox_ended(self) -> None:
        """The sandbox ends: nobody comes back for anything of it."""
        for exec_id in list(self._delivered):
            self._forget(exec_id)
        for exec_id in [*self._kept, *self._abandoned]:
            self.resume(exec_id)
            self.remove(exec_id)

    def close(self) -> None:
        """Leave everything as it is for the next server."""
        for exec_id in [*self._delivered, *self._abandoned]:
            self.resume(exec_id)

    def _forget(self, exec_id: str) -> None:
        timer, forget = self._delivered.pop(exec_id)
        timer.cancel()
        forget()


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
