"""Commands under way: a lossless stream of output from the agent to whoever asked.

A stream survives the loss of its link: it attaches again and goes on at the byte where it stopped. Output is
acknowledged only when the consumer asks for more, so a slow reader slows the command and costs no memory.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from k8e.engine import answers
from k8e.engine.boxes import Box
from k8e.errors import Conflict, Exhausted, InvalidSpec, K8eError, NotFound, SandboxFailed, SandboxLost
from k8e.model import Argv, Code, Command, Denial, Outcome, Reason, Shell, Status
from k8e.tasks import Tasks
from k8e.wire.aio import Data, Event, LinkLost, RemoteError, Stream
from k8e.wire.outbox import WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8e.engine.resumable import ResumableCommands

__all__ = ["STDERR", "STDOUT", "ExecStream", "Output", "exec_args", "outcome_of", "remote_failure"]

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2

_AGENT_GRACE_S: Final = 10.0
# How long past its own time limit a command may keep the agent from answering before we stop believing the agent.
_SIGKILL: Final = 9
_FORGET_TRIES: Final = 20
_FORGET_PAUSE_S: Final = 0.1
_TIMED_OUT_CODE: Final = 124
_MAX_CODE: Final = 255
_MAX_SIGNAL: Final = 64
_MAX_DURATION_MS: Final = 2**53
_REASON_CHARS: Final = 32
_DETAIL_CHARS: Final = 4096
_HELD_BYTES: Final = 2 * WINDOW
"""Of output that comes before word of the command's start, as it may from one that is attached to."""
_CONFLICT: Final = "conflict"
"""How the agent ends a stream whose command somebody else has attached to."""


@dataclass(frozen=True, slots=True)
class Output:
    channel: int
    offset: int
    payload: bytes


Item: TypeAlias = Output | Outcome


def exec_args(exec_id: str, command: Command, *, env: Mapping[str, str], user: str, timeout_s: float) -> dict[str, Any]:
    """The agent's own words for a command."""
    what = command.what
    size = command.terminal
    return {
        "id": exec_id,
        "argv": list(what.argv) if isinstance(what, Argv) else None,
        "shell": what.text if isinstance(what, Shell) else None,
        "language": what.language.value if isinstance(what, Code) else None,
        "code": what.text if isinstance(what, Code) else None,
        "cwd": command.cwd or "/workspace",
        "env": {**env, **command.env},
        "user": command.user or user,
        "stdin": command.stdin,
        "pty": {"rows": size.rows, "cols": size.cols} if size else None,
        "timeout_s": timeout_s if timeout_s > 0 else None,
    }


def remote_failure(error: RemoteError, *, kind: str, name: str) -> K8eError:
    """The agent's refusal in our own tree; the text is the agent's, the class is ours."""
    match error.code:
        case "not_found":
            return NotFound(kind, name)
        case "invalid":
            return InvalidSpec(error.message)
        case "conflict":
            return Conflict(error.message)
        case "gated":
            return Conflict(f"{error.message} is gated, and was not when this was asked for: try again")
        case "exhausted":
            return Exhausted(error.message)
        case "io":
            return InvalidSpec(error.message)
        case _:
            return SandboxFailed("the sandbox's agent failed", error.message)


class ExecStream:
    """One command's output, then exactly one Outcome. Iterate it in one place only."""

    def __init__(
        self,
        box: Box,
        exec_id: str,
        tasks: Tasks,
        *,
        timeout_s: float = 0.0,
        ended: Callable[[], None] = lambda: None,
        denials: Callable[[], Awaitable[tuple[Denial, ...]]] | None = None,
        keep_in_sandbox_bytes: int = 0,
        resumable: ResumableCommands | None = None,
        keeps_output: bool = False,
    ) -> None:
        """With `resumable` its caller can come back for the end, and with `keeps_output` for all of the output, too."""
        self.exec_id = exec_id
        self.pid = 0
        self.denied: tuple[Denial, ...] = ()
        """What its session could not reach meanwhile; known with the outcome."""
        self._denials = denials
        self._box = box
        self._tasks = tasks
        self._ended = ended
        self._ack_lag = keep_in_sandbox_bytes
        if resumable is not None:
            resumable.resume(exec_id)
        self._resumable = resumable
        self._kept = resumable.keep(exec_id) if resumable is not None and keeps_output else None
        self._replayed: Iterator[Output] = self._kept.replay() if self._kept is not None else iter(())
        self._stream: Stream | None = None
        self._delivered: dict[int, int] = {}
        self._unacked: Output | None = None
        self._held_back: collections.deque[Item] = collections.deque()
        self._is_over = False
        self._digest = ""
        self._is_remembered = False
        """Whether the sandbox still knows the end that we have read from it."""
        loop = asyncio.get_running_loop()
        self._give_up_at = loop.time() + timeout_s + _AGENT_GRACE_S if timeout_s > 0 else None

    async def start(self, args: Mapping[str, Any]) -> None:
        """Ask the agent to run it; sent twice after a lost link it still runs once."""
        try:
            self._stream = await self._begin(args)
        except LinkLost as error:
            raise await self._box.unreachable(error) from error
        except ValueError as error:
            raise InvalidSpec(
                "with its environment it is larger than 1 MiB: write it to a file first", field="command"
            ) from error

    async def _begin(self, args: Mapping[str, Any]) -> Stream:
        with contextlib.suppress(LinkLost):
            return await (await self._box.link()).open("exec", args)
        return await (await self._box.link()).open("exec", args)

    async def attach(self, offsets: Mapping[int, int], *, digest: str = "") -> None:
        """Go on with a command that already runs, each channel from its offset. Raises: NotFound.

        With a digest only if it is that command's; else it ends with Conflict.
        """
        self._delivered.update(offsets)
        self._digest = digest
        self._stream = await self._reattach()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._items()

    async def _items(self) -> AsyncIterator[Item]:
        while True:
            item = await self.next()
            yield item
            if isinstance(item, Outcome):
                return

    async def started(self) -> int:
        """Wait until the command runs; its pid inside, or 0 when it ended or could not start."""
        held_bytes = 0
        while not self.pid and not (self._held_back and isinstance(self._held_back[-1], Outcome)):
            item = await self._take(until_started=True)
            if isinstance(item, Output):
                held_bytes += len(item.payload)
                if held_bytes > _HELD_BYTES:
                    raise SandboxFailed("the sandbox's agent answered nonsense", "output of a command before its start")
            if item is not None:
                self._held_back.append(item)
        return self.pid

    async def next(self) -> Item:
        """The next piece of output, or the outcome. Raises: SandboxFailed, NotFound."""
        if (kept := next(self._replayed, None)) is not None:
            self._delivered[kept.channel] = kept.offset + len(kept.payload)
            return kept
        item = self._held_back.popleft() if self._held_back else None
        while item is None:
            item = await self._take()
        if isinstance(item, Outcome) and self._denials is not None:
            self.denied = await self._denials()
        return item

    async def _take(self, *, until_started: bool = False) -> Item | None:
        self._acknowledge()
        try:
            async with asyncio.timeout_at(self._give_up_at):
                while True:
                    item = await self._receive()
                    if item is not None or (until_started and self.pid):
                        return item
        except TimeoutError:
            # The agent enforces the limit itself; one that does not answer long after it is no longer ours.
            why = "the agent did not end the command in time"
            self._tasks.start(self._box.condemn(why), name=f"condemn {self._box.id}")
            return self._over_without_end(why)
        except SandboxLost as error:
            return self._over_without_end(str(error))

    async def send(self, data: bytes) -> None:
        """Input for the command; waits while the command does not read. Raises: SandboxLost, SandboxFailed."""
        async with self._in_touch():
            with contextlib.suppress(RemoteError):
                await self._writer().send(STDIN, data)

    async def send_eof(self) -> None:
        """No more input. Raises: SandboxLost, SandboxFailed."""
        async with self._in_touch():
            with contextlib.suppress(RemoteError):
                await self._writer().finish(STDIN)

    async def kill(self, signal: int = _SIGKILL) -> None:
        """Signal the command, unless it is over; 9 ends everything it started. Raises: SandboxLost, SandboxFailed."""
        if self._is_over:
            return
        try:
            async with self._in_touch():
                await (await self._box.link()).call("kill", {"id": self.exec_id, "signal": signal})
        except RemoteError as error:
            # The sandbox knows the end before we have read all that came until then.
            if error.code != "not_found":
                raise remote_failure(error, kind="command", name=self.exec_id) from error

    @contextlib.asynccontextmanager
    async def _in_touch(self) -> AsyncIterator[None]:
        try:
            yield
        except (LinkLost, TimeoutError) as error:
            raise await self._box.unreachable(error) from error

    async def close(self, *, kill: bool = True) -> None:
        """Let go; unless told otherwise the command ends too. Safe to repeat; an end that was read counts as told."""
        self.forget()
        if self._is_over:
            return
        self._is_over = True
        # Somebody else may have attached while we waited for our own reader: then it is theirs.
        is_ours = self._stream is None or not self._stream.has_failed(_CONFLICT)
        if self._resumable is not None and is_ours:
            if kill:
                self._resumable.remove(self.exec_id)
            else:
                self._resumable.abandon(self.exec_id)
        self._tasks.start(self._let_go(kill and is_ours), name=f"let go {self.exec_id}")
        self._ended()

    def leave_record(self) -> None:
        """Nobody reads on: what is held to record it is given back."""

    async def _let_go(self, kill: bool) -> None:
        with contextlib.suppress(LinkLost, SandboxFailed, TimeoutError, RemoteError):
            if self._stream is not None:
                await self._stream.cancel()
            link = await self._box.link()
            if kill:
                await link.call("kill", {"id": self.exec_id, "signal": _SIGKILL})
                await _forget(self._box, self.exec_id)

    async def _receive(self) -> Item | None:
        try:
            if self._stream is None:
                self._stream = await self._reattach()
            item = await self._stream.receive()
        except LinkLost:
            self._stream = None
            return None
        except RemoteError as error:
            if error.code == _CONFLICT:
                # Somebody attached to the same command and has it now: letting go of it must not kill it.
                self._over(_lost(error.message))
            raise remote_failure(error, kind="command", name=self.exec_id) from error
        if isinstance(item, Data):
            return self._output(item)
        if isinstance(item, Event):
            return self._event(item)
        raise SandboxFailed("the sandbox's agent ended a command without an outcome")

    async def _reattach(self) -> Stream:
        offsets = {str(channel): offset for channel, offset in self._delivered.items()}
        while True:
            # For ever only while links last: after a few that do not, there is none to be had any more.
            with contextlib.suppress(LinkLost):
                args = {"id": self.exec_id, "offsets": offsets, "digest": self._digest}
                return await (await self._box.link()).open("attach", args)

    def _output(self, data: Data) -> Output | None:
        if data.channel not in (STDOUT, STDERR):
            raise SandboxFailed("the sandbox's agent sent output on a channel that does not exist")
        # From an offset that was read before comes what an earlier server read, too.
        read = max(0, self._delivered.get(data.channel, 0) - data.offset)
        output = Output(data.channel, data.offset + read, data.payload[read:] if read else data.payload)
        self._delivered[data.channel] = output.offset + len(output.payload)
        self._unacked = output
        if not output.payload:
            self._acknowledge()
            return None
        return output

    def _acknowledge(self) -> None:
        output, self._unacked = self._unacked, None
        if output is not None and self._kept is not None:
            self._kept.add(output)
        if output is not None and self._stream is not None:
            with contextlib.suppress(LinkLost):
                self._stream.ack(output.channel, max(0, output.offset + len(output.payload) - self._ack_lag))

    def _event(self, event: Event) -> Item | None:
        if event.name == "started":
            self.pid = answers.integer(event.fields, "pid", most=answers.INT32)
        if event.name != "exited":
            return None
        # Not forgotten yet: the caller has not heard of it, and after our death comes back for it.
        self._is_remembered = True
        return self._over(self._outcome(event.fields))

    def _over(self, outcome: Outcome) -> Outcome:
        if not self._is_over:
            self._is_over = True
            self._ended()
        return outcome

    def _over_without_end(self, detail: str) -> Outcome:
        if self._resumable is not None:
            self._resumable.remove(self.exec_id)
        return self._over(_lost(detail))

    def forget(self) -> None:
        """Let the sandbox drop its record of an end that has been told: nobody will come back for it."""
        if not self._is_remembered:
            return
        self._is_remembered = False
        if self._resumable is None:
            self._forget_now()
        else:
            self._resumable.end_delivered(self.exec_id, self._forget_now)

    def _forget_now(self) -> None:
        if self._resumable is not None:
            self._resumable.remove(self.exec_id)
        self._tasks.start(_forget(self._box, self.exec_id), name=f"forget {self.exec_id}")

    def _outcome(self, fields: Mapping[str, Any]) -> Outcome:
        return outcome_of(
            answers.note(fields, "reason", most=_REASON_CHARS),
            code=answers.optional(fields, "code", most=_MAX_CODE),
            signal=answers.optional(fields, "signal", most=_MAX_SIGNAL),
            detail=answers.note(fields, "detail", most=_DETAIL_CHARS),
            duration_ms=answers.optional(fields, "duration_ms", most=_MAX_DURATION_MS),
        )

    def _writer(self) -> Stream:
        if self._stream is None:
            raise LinkLost("the link to the sandbox is being made anew")
        return self._stream


def outcome_of(reason: str, *, code: int, signal: int, detail: str, duration_ms: int) -> Outcome:
    """The agent's account of an end in the words of our clients."""
    status, why, exit_code = Status.COMPLETED, Reason.NONE, 128 + signal if signal else code
    match reason:
        case "timed_out":
            status, exit_code = Status.TIMED_OUT, _TIMED_OUT_CODE
        case "killed":
            status, why = Status.FAILED, Reason.KILLED
        case "oom_killed":
            status, why, exit_code = Status.FAILED, Reason.OOM_KILLED, 128 + _SIGKILL
        case "not_started":
            status, why = Status.FAILED, Reason.NOT_STARTED
    return Outcome(
        status=status, exit_code=exit_code, signal=signal, reason=why, detail=detail, duration_ms=duration_ms
    )


def _lost(detail: str) -> Outcome:
    return Outcome(status=Status.FAILED, exit_code=128 + _SIGKILL, reason=Reason.SANDBOX_LOST, detail=detail)


async def _forget(box: Box, exec_id: str) -> None:
    """Let the agent drop its record; it keeps one of a command that has not quite ended yet, so ask again."""
    for _ in range(_FORGET_TRIES):
        with contextlib.suppress(LinkLost, SandboxFailed, TimeoutError):
            try:
                await (await box.link()).call("forget", {"id": exec_id})
            except RemoteError as error:
                if error.code == "conflict":
                    await asyncio.sleep(_FORGET_PAUSE_S)
                    continue
        return
