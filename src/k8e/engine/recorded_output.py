"""The output of a background run, in files on the server's disk, and how much of that sessions and owners may have.

Files are written off the event loop, a run's one after the other. Past the bound of one run output is dropped and the run
says so. What runs leave on disk is bounded for each session and each owner: the oldest that have ended lose their output
first, then what still comes is dropped.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from k8e.engine.file_worker import FileWorker
from k8e.engine.process_stream import STDERR, STDOUT, Output
from k8e.engine.session import Session
from k8e.engine.settings import KeptLimits
from k8e.model import MIB, OwnerId
from k8e.tasks import Tasks

__all__ = ["OutputBudget", "RecordedOutput"]

_log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 256 * 1024
_VIEWED_BYTES: Final = 8 * MIB
"""Of each stream in one view; whoever wants more follows the run."""
_CHANNELS: Final = (STDOUT, STDERR)


class RecordedOutput:
    """Of one run: a file for each channel in `directory`, which is made when there is something to write."""

    def __init__(
        self,
        directory: Path,
        *,
        session: Session,
        budget: OutputBudget,
        truncated: bool,
        has_files: bool,
        on_cut: Callable[[], None],
    ) -> None:
        """Where an earlier server may have written something it `has_files`, and this blocks.

        `on_cut` is called when something is left out for the first time.
        """
        self.session = session
        self.has_ended = False
        """Whether nothing more comes: then it may lose its files where others need the room."""
        self.may_be_removed = False
        """Whether its run is forgotten: then what is not in its files is not about to be written."""
        self._truncated = truncated
        self._budget = budget
        self._directory = directory
        self._on_cut = on_cut
        self._kept_whole = set(_CHANNELS)
        """Channels of which nothing is missing so far, and so may go on."""
        self._sizes = {channel: _size_of(self._path(channel)) if has_files else 0 for channel in _CHANNELS}

    @property
    def truncated(self) -> bool:
        """Whether something that was printed is not in its files."""
        return self._truncated

    @property
    def kept_bytes(self) -> int:
        """What it has on disk."""
        return sum(self._sizes.values())

    def offsets(self) -> dict[int, int]:
        """Where each file ends; a truncated one no longer says where the stream is."""
        limit = self.session.spec.limits.run_output_bytes
        return {channel: size for channel, size in self._sizes.items() if size < limit}

    async def add(self, output: Output) -> None:
        """When this returns it is in its file, as far as it is kept at all."""
        wanted, before = self._wanted(output), self.kept_bytes
        self._budget.make_room(self.session, wanted)
        reserved = self._reserve(output, wanted, self._budget.room(self.session))
        # Before it is written: others that write meanwhile must not count on the same room.
        self._budget.add_bytes(self, self.kept_bytes - before)
        if reserved:
            before = self.kept_bytes
            try:
                await self._budget.files.run(functools.partial(self._append, output.channel, reserved))
            except OSError as error:
                # The process goes on without.
                _log.warning("cannot keep a run's output", extra={"run": self._directory.name, "reason": str(error)})
                self._cut(output.channel)
                # Asked on the same thread: a disk that has just failed may also be slow to answer.
                path = self._path(output.channel)
                self._sizes[output.channel] = await self._budget.files.run(functools.partial(_size_of, path))
                self._budget.add_bytes(self, self.kept_bytes - before)

    def _wanted(self, output: Output) -> int:
        """How much of this it would write down, if there were room for it on the host."""
        size = self._sizes[output.channel]
        if output.channel not in self._kept_whole or output.offset != size:
            return 0
        return max(0, min(self.session.spec.limits.run_output_bytes - size, len(output.payload)))

    def _reserve(self, output: Output, wanted: int, room: int) -> bytes:
        """What fits of it, whose bytes count as kept from here on; called in order, once per byte."""
        if wanted < len(output.payload):
            self._leave_out()
        if wanted > room or output.offset != self._sizes[output.channel]:
            self._cut(output.channel)
        reserved = output.payload[: min(wanted, room)]
        self._sizes[output.channel] += len(reserved)
        return reserved

    def _cut(self, channel: int) -> None:
        """From now on nothing more of it is written: what comes later must not stand where something is missing."""
        self._kept_whole.discard(channel)
        self._leave_out()

    def _leave_out(self) -> None:
        if not self._truncated:
            self._truncated = True
            self._on_cut()

    def _append(self, channel: int, data: bytes) -> None:
        """Blocking. Raises: OSError."""
        if not self._directory.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
        with self._path(channel).open("ab") as file:
            file.write(data)

    def drop(self) -> None:
        """It is no longer kept."""
        self._sizes = dict.fromkeys(_CHANNELS, 0)
        self._leave_out()

    def remove(self) -> None:
        """Everything that was written of it. Blocking."""
        shutil.rmtree(self._directory, ignore_errors=True)

    # --- for readers ---------------------------------------------------------------------------------------------------

    def open(self, offsets: Mapping[int, int], *, waits: bool) -> dict[int, int]:
        """Nobody need be waited for: what is in a file stays there."""
        return {channel: offsets.get(channel, 0) for channel in _CHANNELS}

    async def read(self, place: dict[int, int]) -> Output | None:
        for channel, at in place.items():
            if at >= self._sizes[channel]:
                continue
            # Neither on the event loop nor on the threads that everybody uses: a slow disk must hold up nobody else.
            work = functools.partial(self._read, channel, at, _CHUNK_BYTES)
            if payload := await self._budget.files.read(self.session.owner, work):
                return Output(channel, at, payload)
            if self.may_be_removed:
                self._leave_out()
        return None

    def taken(self, place: dict[int, int], output: Output) -> None:
        place[output.channel] = output.end

    def close(self, place: dict[int, int]) -> None:
        pass

    def view(self, channel: int, most: int) -> bytes:
        """So much of one channel from its beginning, and of that no more than the last that fits an answer. Blocking."""
        end = min(self._sizes[channel], most)
        begin = max(0, end - _VIEWED_BYTES)
        return self._read(channel, begin, end - begin) if end else b""

    def viewed_bytes(self, most: int) -> int:
        """How much output such a view of both has."""
        return sum(min(size, most, _VIEWED_BYTES) for size in self._sizes.values())

    def exceeds(self, most: int) -> bool:
        """Whether such a view of both leaves something out."""
        return self.truncated or any(size > min(most, _VIEWED_BYTES) for size in self._sizes.values())

    def _read(self, channel: int, offset: int, length: int) -> bytes:
        with contextlib.suppress(FileNotFoundError), self._path(channel).open("rb") as file:
            return os.pread(file.fileno(), length, offset)
        return b""

    def _path(self, channel: int) -> Path:
        return self._directory / str(channel)


class OutputBudget:
    """What recorded output may take on disk, by session and by owner."""

    def __init__(self, kept: KeptLimits, files: FileWorker, tasks: Tasks) -> None:
        self.files = files
        self._kept = kept
        self._tasks = tasks
        self._outputs: dict[Session, dict[RecordedOutput, None]] = {}
        """Oldest first."""
        self._ended: dict[OwnerId, dict[RecordedOutput, None]] = {}
        """Those that have ended and still have files, in the order of their ends."""
        self._bytes_of_session: Counter[Session] = Counter()
        self._bytes_of_owner: Counter[OwnerId] = Counter()

    def register(self, output: RecordedOutput) -> None:
        """From now on what it keeps counts."""
        self._outputs.setdefault(output.session, {})[output] = None
        self.add_bytes(output, output.kept_bytes)

    def unregister(self, output: RecordedOutput) -> None:
        """It does not count any more, and never again."""
        outputs = self._outputs.get(output.session, {})
        if output not in outputs:
            return
        output.may_be_removed = True
        self.add_bytes(output, -output.kept_bytes)
        self._unlist(output)
        del outputs[output]
        if not outputs:
            del self._outputs[output.session], self._bytes_of_session[output.session]

    def add_bytes(self, output: RecordedOutput, count: int) -> None:
        """It keeps so many more, or fewer where negative."""
        session = output.session
        if output not in self._outputs.get(session, {}):
            return
        self._bytes_of_session[session] += count
        self._bytes_of_owner[session.owner] += count
        if not self._bytes_of_owner[session.owner]:
            del self._bytes_of_owner[session.owner]

    def settle(self, output: RecordedOutput) -> None:
        """It has ended: from now on its files go when room is needed."""
        output.has_ended = True
        if output.kept_bytes and output in self._outputs.get(output.session, {}):
            self._ended.setdefault(output.session.owner, {})[output] = None

    def room(self, session: Session) -> int:
        """How much more the session's runs may keep on disk."""
        return min(self._room_of_session(session), self._room_of_owner(session.owner))

    def make_room(self, session: Session, wanted: int) -> None:
        """Delete the files of runs that have ended, oldest first, as far as that makes room where it is missing."""
        if wanted <= self.room(session):
            return
        for output in list(self._outputs.get(session, {})):
            if self._room_of_session(session) >= wanted:
                break
            if output.has_ended and output.kept_bytes:
                self._evict(output)
        wanted = min(wanted, self._room_of_session(session))
        for output in list(self._ended.get(session.owner, {})):
            if self._room_of_owner(session.owner) >= wanted:
                break
            self._evict(output)

    def remove_files(self, output: RecordedOutput) -> None:
        """In the background."""
        self._tasks.start(self.files.run(output.remove), name="remove the output of a run")

    def _room_of_session(self, session: Session) -> int:
        return max(0, self._kept.output_per_session - self._bytes_of_session[session])

    def _room_of_owner(self, owner: OwnerId) -> int:
        return max(0, self._kept.output_per_owner - self._bytes_of_owner[owner])

    def _evict(self, output: RecordedOutput) -> None:
        """Delete its files for the room that they take."""
        self.add_bytes(output, -output.kept_bytes)
        output.drop()
        self._unlist(output)
        self.remove_files(output)

    def _unlist(self, output: RecordedOutput) -> None:
        """It has no files any more that could make room."""
        ended = self._ended.get(output.session.owner, {})
        ended.pop(output, None)
        if not ended:
            self._ended.pop(output.session.owner, None)


def _size_of(path: Path) -> int:
    """0 also where the disk does not tell: then nothing of it can be read either. Blocking."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
