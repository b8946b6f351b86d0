"""One process of a session: a command, a background run or a program on a terminal, from its start to its end.

These differ by what is kept of their output. Of a command in the foreground nothing is: whoever asked for it is its
reader, and it waits for that one. Output of the others is kept (`RecordedOutput` on disk,
`RecentOutput` in memory): the process reads itself, and everybody else reads what is kept. Either way any number of
others may follow it, and whoever may can give it input and signal it.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from k8e.engine.process_stream import SIGKILL, Output, ProcessStream, lost, remote_failure
from k8e.engine.recording import Recorder
from k8e.engine.resumable import ResumableCommands
from k8e.engine.session import Session, Use
from k8e.errors import K8eError, NotFound, SandboxFailed, SandboxUnreachable
from k8e.model import Denial, Outcome
from k8e.tasks import Tasks
from k8e.wire.aio import LinkLost, RemoteError
from k8e.wire.outbox import WINDOW

__all__ = ["Follower", "Item", "OutputStore", "Parting", "Process", "ProcessView", "Reading", "ask"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

Item: TypeAlias = Output | Outcome
Parting: TypeAlias = Callable[[], None]
"""What a reader that leaves wants done with the process, if no other reader has it by then."""

_HELD_BYTES: Final = 2 * WINDOW
"""Of output that comes before word of the process's start, as it may from one that is attached to."""
_OUT_OF_REACH_FIRST_S: Final = 0.1
_OUT_OF_REACH_MOST_S: Final = 10.0
"""Between two tries at reading a process that cannot be reached."""


Place: TypeAlias = Any
"""Where somebody is in the output that is kept: a value of the store that gave it, and of no use to another."""


class OutputStore(Protocol):
    """What is kept of a process's output, for any number of viewers."""

    @property
    def truncated(self) -> bool:
        """Whether something is not kept, though no gap in the offsets shows it."""
        ...

    async def add(self, output: Output) -> None:
        """Keep it; when this returns the sandbox may forget it."""
        ...

    def open(self, offsets: Mapping[int, int], *, waits: bool) -> Place:
        """A viewer's place, from these offsets on. With `waits` what this viewer has not seen is not dropped."""
        ...

    async def read(self, place: Place) -> Output | None:
        """What comes next there; None when nothing more is kept yet."""
        ...

    def taken(self, place: Place, output: Output) -> None:
        """That viewer has it, and asks for more."""
        ...

    def close(self, place: Place) -> None:
        """That viewer is gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What goes with reading a process from its sandbox."""

    stream: ProcessStream
    recorder: Recorder | None = None
    denials: Callable[[], Awaitable[tuple[Denial, ...]]] | None = None
    resumable: ResumableCommands | None = None
    """With it a caller can come back for the end."""
    keeps_output: bool = False
    """And for all of the output, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """What a list says of one."""

    exec_id: str
    pid: int
    is_running: bool
    """Otherwise it has ended, and its sandbox still knows how."""
    has_terminal: bool
    takes_input: bool
    is_kept: bool
    """Whether its output is kept for whoever comes: of a background run or a terminal."""
    command: str
    """In short; perhaps only the program, after a restart of ours or where nobody has read it for a while."""
    started_at: float


class Follower:
    """One more that reads a process, which does not wait for it: output, then the outcome.

    With the outcome it knows whether it has missed output, and what the process could not reach.
    """

    def __init__(
        self,
        items: AsyncGenerator[Item, None],
        offsets: Mapping[int, int],
        *,
        process: Process | None = None,
        left: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`process` is given where the items come from what is kept of it; `left` is called when this is closed."""
        self._items = items
        self._at = dict(offsets)
        self._process = process
        self._left = left
        self._has_missed = False

    @property
    def truncated(self) -> bool:
        """Whether there was output that it was not given."""
        kept = self._process.output if self._process is not None else None
        return self._has_missed or (kept is not None and kept.truncated)

    @property
    def denied(self) -> tuple[Denial, ...]:
        """Hosts that the process was refused, where that is known."""
        return self._process.denied if self._process is not None else ()

    async def __aiter__(self) -> AsyncIterator[Item]:
        async for item in self._items:
            if isinstance(item, Output):
                self._has_missed = self._has_missed or item.offset > self._at.get(item.channel, 0)
                self._at[item.channel] = item.end
            yield item

    async def close(self) -> None:
        """Read no more of it; the process goes on. Safe to repeat."""
        left, self._left = self._left, None
        if left is not None:
            await left()
        await self._items.aclose()


class Process:
    """Known by its id within its session, before it has begun and after it has ended."""

    def __init__(
        self,
        session: Session,
        process_id: str,
        tasks: Tasks,
        *,
        title: str = "",
        started_at: float | None = None,
        output: OutputStore | None = None,
    ) -> None:
        """Without a place for its output it has one reader: `next` and `close` are for that one."""
        self.id = process_id
        self.session = session
        self.title = title
        self.started_at = time.time() if started_at is None else started_at
        self.output = output
        self.outcome: Outcome | None = None
        """Of one whose output is kept: once it may be told."""
        self.denied: tuple[Denial, ...] = ()
        """What its session could not reach meanwhile; known with the outcome."""
        self.begun = asyncio.Event()
        """Set when it runs, or will not."""
        self._tasks = tasks
        self._reading: Reading | None = None
        self._use: Use | None = None
        self._on_left: Callable[[Parting | None], None] = lambda _parting: None
        self._replayed: AsyncGenerator[Output, None] | None = None
        """What is kept of it and the reader is given first."""
        self._held_back: collections.deque[Item] = collections.deque()
        self._last: Output | None = None
        """Given to the reader, who may not have it yet."""
        self._has_left = False
        """Whether its one reader has the end, or has left."""
        self._is_resumed = False
        """Whether it is known that this reader, and nobody before it, has the command now."""
        self._has_told_end = False
        self._changed = asyncio.Event()
        """Set, and replaced, whenever there is more to read or the end to hear of."""
        self._reader: asyncio.Task[None] | None = None

    # --- reading it from its sandbox: for its one reader -------------------------------------------------------------------

    def begin_reading(self, reading: Reading, *, left: Callable[[Parting | None], None]) -> None:
        """From now on it is being read, and its session is in use until this reader has the end or leaves.

        Then `left` is called with what the reader wants done with the process, if anything.
        """
        self._reading = reading
        self._on_left = left
        self._use = Use(self.session)
        if reading.resumable is not None:
            reading.resumable.extend(self.id)
            if reading.keeps_output:
                self._replayed = reading.resumable.replay(self.id)

    @property
    def age_ms(self) -> int:
        """How long ago it was started."""
        return int((time.time() - self.started_at) * 1000)

    @property
    def pid(self) -> int:
        """Its process inside, once that is known."""
        return self._reading.stream.pid if self._reading is not None else 0

    async def started(self) -> int:
        """Wait until it runs; its pid inside, or 0 when it ended or could not start."""
        stream, held_bytes = self._source().stream, 0
        while not self.pid and not (self._held_back and isinstance(self._held_back[-1], Outcome)):
            item = await self._receive(until_started=True)
            if isinstance(item, Output):
                held_bytes += len(item.payload)
                if held_bytes > _HELD_BYTES:
                    raise SandboxFailed("the sandbox's agent answered nonsense", "output of a command before its start")
            if item is not None:
                self._held_back.append(item)
        return stream.pid

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._items()

    async def _items(self) -> AsyncIterator[Item]:
        while True:
            item = await self.next()
            yield item
            if isinstance(item, Outcome):
                return

    async def next(self) -> Item:
        """The next piece of output, or the outcome.

        Raises: SandboxUnreachable (try again), SandboxFailed, NotFound, Conflict when another reader has it.
        """
        reading = self._source()
        item: Item | None = await self._next_replayed()
        if isinstance(item, Output):
            reading.stream.skip(item)
        elif self._held_back:
            item = self._held_back.popleft()
        while item is None:
            item = await self._receive()
        if isinstance(item, Output):
            if reading.recorder is not None:
                reading.recorder.add(item.payload)
            return item
        if reading.denials is not None:
            self.denied = await reading.denials()
        if reading.recorder is not None:
            await reading.recorder.end(self.id, item)
        return item

    async def _next_replayed(self) -> Output | None:
        if self._replayed is None:
            return None
        output = await anext(self._replayed, None)
        if output is None:
            self._replayed = None
        return output

    async def _receive(self, *, until_started: bool = False) -> Item | None:
        reading = self._source()
        last, self._last = self._last, None
        if last is not None and reading.resumable is not None and reading.keeps_output:
            # Before the stream goes on, which lets the sandbox forget it.
            await reading.resumable.add(self.id, last)
        item = await reading.stream.next(until_started=until_started)
        if reading.resumable is not None and not self._is_resumed and self.is_answered:
            self._is_resumed = True
            reading.resumable.resume(self.id, title=self.title, started_at=self.started_at)
        if isinstance(item, Output):
            self._last = item
        elif isinstance(item, Outcome):
            if not reading.stream.is_remembered and reading.resumable is not None:
                reading.resumable.remove(self.id)
            self._end_reading(None)
        return item

    def _end_reading(self, parting: Parting | None) -> None:
        self._has_left = True
        self._on_left(parting)
        if self._use is not None:
            self._use()

    def _source(self) -> Reading:
        """What it is read with. Raises: SandboxFailed where it has not been started."""
        if self._reading is None:
            raise SandboxFailed("read a process", "it has not been started")
        return self._reading

    @property
    def is_answered(self) -> bool:
        """Whether the sandbox has taken this reader on: then no reader before it goes on."""
        return self._reading is not None and self._reading.stream.has_answered

    async def close(self, *, kill: bool = True, was_refused: bool = False) -> None:
        """Read no more of it; unless told otherwise it ends too, if no other reader has it.

        Safe to repeat; an end that was read counts as told. One whose start was refused has nothing to end.
        """
        self._leave(kill=kill, was_refused=was_refused)

    def _leave(self, *, kill: bool, was_refused: bool = False) -> None:
        reading = self._reading
        if reading is None:
            return
        self.leave_record()
        self.forget()
        if self._has_left:
            return
        reading.stream.let_go(kill=False)
        has_nothing_to_end = was_refused or reading.stream.was_refused
        self._end_reading(None if has_nothing_to_end else functools.partial(self._kill_or_abandon, kill=kill))

    def _kill_or_abandon(self, *, kill: bool) -> None:
        """Nobody reads it now: end it, or leave it for a caller who comes back."""
        reading = self._source()
        if kill:
            reading.stream.let_go(kill=True)
        if reading.resumable is None or not self.is_answered:
            return  # what is kept under its name may be another command's
        if kill:
            reading.resumable.remove(self.id)
        else:
            reading.resumable.abandon(self.id)

    def forget(self) -> None:
        """Let the sandbox drop its record of an end that has been told: nobody will come back for it."""
        reading = self._reading
        if reading is None or not reading.stream.is_remembered:
            return
        if reading.resumable is None:
            reading.stream.forget()
        elif not self._has_told_end:
            self._has_told_end = True
            reading.resumable.end_told(self.id, reading.stream.forget)

    def leave_record(self) -> None:
        """Nobody reads on: what is held to record it is given back."""
        if self._reading is not None and self._reading.recorder is not None:
            self._reading.recorder.leave()

    # --- what is kept of it: read by anybody ---------------------------------------------------------------------------

    def keep_reading(self, write_end: Callable[[Outcome], Awaitable[bool]], *, afterwards: Callable[[], None]) -> None:
        """Put all that it says where its output is kept, until its end or ours; either way `afterwards` is called.

        `write_end` is called before anybody hears of the end, and says whether the sandbox may forget it. While the sandbox
        cannot be reached its process is neither ended nor given up.
        """

        def done(_task: object) -> None:
            self.leave_record()
            self.begun.set()
            afterwards()

        self._reader = self._tasks.start(self._keep(write_end), name=f"read {self.id}")
        self._reader.add_done_callback(done)

    async def _keep(self, write_end: Callable[[Outcome], Awaitable[bool]]) -> None:
        outcome = await self._keep_output()
        may_forget = await write_end(outcome)
        self.end(outcome)
        if may_forget:
            # Until here the sandbox was the only other place that knew the end.
            self.forget()

    async def _keep_output(self) -> Outcome:
        try:
            if not self.begun.is_set():
                await self._insisting(self.started)
                self.begun.set()
            while not isinstance(item := await self._insisting(self.next), Outcome):
                if self.output is not None:
                    await self.output.add(item)
                self.notify()
        except K8eError as error:
            # Nobody reads it any more: what still runs must not, and must not keep its session busy.
            await self.close()
            return lost(str(error), duration_ms=self.age_ms)
        return item

    async def _insisting(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """What the sandbox says once it can be reached. Until its death is known its process may run."""
        pause_s = _OUT_OF_REACH_FIRST_S
        while True:
            try:
                return await ask()
            except SandboxUnreachable as error:
                _log.warning("cannot read a process now", extra={"exec_id": self.id, "reason": str(error)})
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _OUT_OF_REACH_MOST_S)
            self._source().stream.expect_later()

    def end(self, outcome: Outcome) -> None:
        """Whoever follows it hears this, unless another end was told before."""
        if self.outcome is None:
            self.outcome = outcome
        self.begun.set()
        self.notify()

    def stop(self, outcome: Outcome, *, kill: bool = False) -> None:
        """It is no longer ours: read no more of it."""
        if self._reader is not None:
            self._reader.cancel()
        self._leave(kill=kill)
        self.end(outcome)

    def notify(self) -> None:
        """There is more to read."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def ended(self) -> Outcome:
        """Wait for its end."""
        while self.outcome is None:
            await self._changed.wait()
        return self.outcome

    async def follow(self, offsets: Mapping[int, int], *, waits: bool = True) -> AsyncGenerator[Item, None]:
        """What is kept from the offsets on, then everything that comes, then the outcome. Only where output is kept.

        Unless it `waits` for whoever follows, output may be dropped that they have not seen.
        """
        output = self.output
        if output is None:
            raise SandboxFailed("follow a process", "nothing of its output is kept here")
        place = output.open(offsets, waits=waits)
        try:
            while True:
                changed, outcome = self._changed, self.outcome
                while (piece := await output.read(place)) is not None:
                    yield piece
                    output.taken(place, piece)
                if outcome is not None:
                    yield outcome
                    return
                await changed.wait()
        finally:
            output.close(place)

    # --- input and signals ---------------------------------------------------------------------------------------------

    async def send(self, data: bytes) -> None:
        """Input; waits while it does not read. Raises: SandboxLost, SandboxFailed."""
        await self._source().stream.send(data)

    async def send_eof(self) -> None:
        """No more input. Raises: SandboxLost, SandboxFailed."""
        await self._source().stream.send_eof()

    async def signal(self, number: int = SIGKILL) -> bool:
        """Signal it, and whether it could be: 9 ends everything that it started. Raises: SandboxLost, SandboxFailed."""
        if self._has_left or self.outcome is not None:
            return False
        try:
            await ask(self.session, "kill", {"id": self.id, "signal": number}, kind="command", name=self.id)
        except NotFound:
            # The sandbox knows the end before we have read all that came until then.
            return False
        return True


async def ask(session: Session, op: str, args: Mapping[str, object], *, kind: str, name: str) -> dict[str, Any]:
    """A small question to a session's agent. Raises: NotFound for that kind and name, SandboxLost, SandboxFailed."""
    box = session.live_box()
    try:
        return await (await box.link()).call(op, args)
    except RemoteError as error:
        raise remote_failure(error, kind=kind, name=name) from error
    except (LinkLost, TimeoutError) as error:
        raise await box.unreachable(error) from error
