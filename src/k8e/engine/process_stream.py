"""The engine's end of one process in a sandbox: what its agent says of it, over as many links as it takes.

A stream survives the loss of its link: it attaches again and goes on at the byte where it stopped. Output is
acknowledged only when the reader asks for more, so a slow reader slows the process and costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from k8e.engine import answers
from k8e.engine.boxes import Box
from k8e.errors import Conflict, Exhausted, InvalidSpec, K8eError, NotFound, SandboxFailed, SandboxLost
from k8e.model import Argv, Code, Command, Outcome, Reason, Shell, Status
from k8e.tasks import Tasks
from k8e.wire.aio import Data, Event, LinkLost, RemoteError, Stream

__all__ = [
    "SIGKILL",
    "STDERR",
    "STDOUT",
    "Output",
    "ProcessStream",
    "exec_args",
    "lost",
    "outcome_of",
    "remote_failure",
]

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
SIGKILL: Final = 9

_AGENT_GRACE_S: Final = 10.0
# How long past its own time limit a command may keep the agent from answering before we stop believing the agent.
_FORGET_TRIES: Final = 20
_FORGET_PAUSE_S: Final = 0.1
_TIMED_OUT_CODE: Final = 124
_MAX_CODE: Final = 255
_MAX_SIGNAL: Final = 64
_MAX_DURATION_MS: Final = 2**53
_REASON_CHARS: Final = 32
_DETAIL_CHARS: Final = 4096


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a process wrote to one of its channels."""

    channel: int
    offset: int
    payload: bytes

    @property
    def end(self) -> int:
        """The offset of what comes next."""
        return self.offset + len(self.payload)


def exec_args(exec_id: str, command: Command, *, env: Mapping[str, str], user: str, timeout_s: float) -> dict[str, Any]:
    """What the agent is asked: a command in its own words."""
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


class ProcessStream:
    """What the agent says of one process: its output, then exactly one outcome. One reader at a time."""

    def __init__(
        self, box: Box, process_id: str, tasks: Tasks, *, timeout_s: float = 0.0, keep_in_sandbox_bytes: int = 0
    ) -> None:
        """`timeout_s` is the process's own limit; of each channel the sandbox keeps so many bytes after they were read."""
        self.process_id = process_id
        self.pid = 0
        self._box = box
        self._tasks = tasks
        self._ack_lag = keep_in_sandbox_bytes
        self._stream: Stream | None = None
        self._delivered: dict[int, int] = {}
        self._unacked: Output | None = None
        self._op = "attach"
        self._request: Mapping[str, Any] | None = None
        """What starts it, until the agent has answered: asked twice, it still starts once."""
        self._digest = ""
        self._has_answered = False
        self._was_refused = False
        self._is_remembered = False
        """Whether the sandbox still knows the end that we have read from it."""
        self._give_up_at = asyncio.get_running_loop().time() + timeout_s + _AGENT_GRACE_S if timeout_s > 0 else None

    async def start(self, args: Mapping[str, Any]) -> None:
        """Ask the agent to run it; over however many links, it runs once.

        Raises: SandboxLost, SandboxUnreachable, InvalidSpec; then it was not asked.
        """
        self._request, self._digest = args, args.get("digest", "")
        try:
            with contextlib.suppress(LinkLost):
                self._stream = await self._open()
                return
            self._stream = await self._open()
        except LinkLost as error:
            raise await self._box.unreachable(error) from error
        except ValueError as error:
            raise InvalidSpec(
                "with its environment it is larger than 1 MiB: write it to a file first", field="command"
            ) from error

    async def _open(self) -> Stream:
        """On a link that there is now. Raises: LinkLost, SandboxLost, SandboxUnreachable; ValueError when it is too large."""
        offsets = {str(channel): offset for channel, offset in self._delivered.items()}
        attach = {"id": self.process_id, "offsets": offsets, "digest": self._digest}
        link = await self._box.link()
        return await (link.open("exec", self._request) if self._request is not None else link.open(self._op, attach))

    async def attach(self, offsets: Mapping[int, int], *, digest: str = "") -> None:
        """Go on with a process that already runs, each channel from its offset; another stream of it ends with Conflict.

        With a digest only if it is that command's; else this stream ends with Conflict. After an error it can still be
        read: then it is tried again. Raises: SandboxLost, SandboxUnreachable.
        """
        self._delivered.update(offsets)
        self._digest = digest
        self._stream = await self._reattach()

    async def follow(self, offsets: Mapping[int, int]) -> None:
        """Only read it, beside its reader and without its waiting for us: what we are too slow for is left out.

        Raises: SandboxLost, SandboxFailed.
        """
        self._delivered.update(offsets)
        self._op = "follow"
        self._stream = await self._reattach()

    async def items(self) -> AsyncGenerator[Output | Outcome, None]:
        """All that comes."""
        while True:
            item = await self.next()
            if item is not None:
                yield item
            if isinstance(item, Outcome):
                return

    def skip(self, output: Output) -> None:
        """This was read elsewhere: go on behind it."""
        self._delivered[output.channel] = output.end

    async def next(self, *, until_started: bool = False) -> Output | Outcome | None:
        """The next piece of output, or the outcome; what came before counts as read from here on.

        With `until_started` also None, once its pid is known. Where it cannot be reached now it may be asked again.
        Raises: SandboxUnreachable, SandboxFailed, NotFound, Conflict.
        """
        self.acknowledge()
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
            return lost(why)
        except SandboxLost as error:
            return lost(str(error))

    async def send(self, data: bytes) -> None:
        """Input for the process; waits while it does not read. Raises: SandboxLost, SandboxFailed."""
        async with self._in_touch():
            with contextlib.suppress(RemoteError):
                await self._writer().send(STDIN, data)

    async def send_eof(self) -> None:
        """No more input. Raises: SandboxLost, SandboxFailed."""
        async with self._in_touch():
            with contextlib.suppress(RemoteError):
                await self._writer().finish(STDIN)

    @contextlib.asynccontextmanager
    async def _in_touch(self) -> AsyncIterator[None]:
        try:
            yield
        except (LinkLost, TimeoutError) as error:
            raise await self._box.unreachable(error) from error

    async def detach(self) -> None:
        """Read no more of it; by whatever is asked on this link next, the sandbox has heard so."""
        if self._stream is not None:
            await self._stream.cancel()

    def let_go(self, *, kill: bool) -> None:
        """Read no more of it, and end it if told to; done in the background."""
        self._tasks.start(self._let_go(kill), name=f"let go {self.process_id}")

    async def _let_go(self, kill: bool) -> None:
        with contextlib.suppress(LinkLost, SandboxFailed, TimeoutError, RemoteError):
            await self.detach()
            if kill:
                # By its digest, too: what we could not start may have the name of a command that another caller started.
                args = {"id": self.process_id, "signal": SIGKILL, "digest": self._digest}
                await (await self._box.link()).call("kill", args)
                await _forget(self._box, self.process_id)

    def forget(self) -> None:
        """Let the sandbox drop its record of an end that was read here, if there is one."""
        if self._is_remembered:
            self._is_remembered = False
            self._tasks.start(_forget(self._box, self.process_id), name=f"forget {self.process_id}")

    @property
    def is_remembered(self) -> bool:
        """Whether the sandbox still knows the end that was read here."""
        return self._is_remembered

    @property
    def has_answered(self) -> bool:
        """Whether the agent has taken this stream on, heard or not: then no earlier stream of this process goes on."""
        return self._has_answered or (self._stream is not None and self._stream.has_news)

    @property
    def was_refused(self) -> bool:
        """Whether the agent has not taken it on, and said why."""
        return self._was_refused

    def expect_later(self) -> None:
        """It could not be reached: from now on it has its grace once more."""
        if self._give_up_at is not None:
            self._give_up_at = max(self._give_up_at, asyncio.get_running_loop().time() + _AGENT_GRACE_S)

    async def _receive(self) -> Output | Outcome | None:
        try:
            if self._stream is None:
                self._stream = await self._reattach()
            item = await self._stream.receive()
        except LinkLost:
            self._stream = None
            return None
        except RemoteError as error:
            self._was_refused = not self._has_answered
            raise remote_failure(error, kind="command", name=self.process_id) from error
        if item is not None:
            self._has_answered, self._request = True, None
        if isinstance(item, Data):
            return self._output(item)
        if isinstance(item, Event):
            return self._event(item)
        raise SandboxFailed("the sandbox's agent ended a command without an outcome")

    async def _reattach(self) -> Stream:
        while True:
            # For ever only while links last: after a few that do not, there is none to be had any more.
            with contextlib.suppress(LinkLost):
                return await self._open()

    def _output(self, data: Data) -> Output | None:
        if data.channel not in (STDOUT, STDERR):
            raise SandboxFailed("the sandbox's agent sent output on a channel that does not exist")
        # From an offset that was read before comes what an earlier server read, too.
        read = max(0, self._delivered.get(data.channel, 0) - data.offset)
        output = Output(data.channel, data.offset + read, data.payload[read:] if read else data.payload)
        self._delivered[data.channel] = output.end
        self._unacked = output
        if not output.payload:
            self.acknowledge()
            return None
        return output

    def acknowledge(self) -> None:
        """What was returned last is read: the agent need not keep it."""
        output, self._unacked = self._unacked, None
        if output is not None and self._stream is not None:
            with contextlib.suppress(LinkLost):
                self._stream.ack(output.channel, max(0, output.end - self._ack_lag))

    def _event(self, event: Event) -> Outcome | None:
        if event.name == "started":
            self.pid = answers.integer(event.fields, "pid", most=answers.INT32)
        if event.name != "exited":
            return None
        # Not forgotten yet: the caller has not heard of it, and after our death comes back for it.
        self._is_remembered = True
        return self._outcome(event.fields)

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
            status, why, exit_code = Status.FAILED, Reason.OOM_KILLED, 128 + SIGKILL
        case "not_started":
            status, why = Status.FAILED, Reason.NOT_STARTED
    return Outcome(
        status=status, exit_code=exit_code, signal=signal, reason=why, detail=detail, duration_ms=duration_ms
    )


def lost(detail: str, *, duration_ms: int = 0) -> Outcome:
    """The end of a process whose own end nobody will hear of."""
    return Outcome(
        status=Status.FAILED,
        exit_code=128 + SIGKILL,
        reason=Reason.SANDBOX_LOST,
        detail=detail,
        duration_ms=duration_ms,
    )


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
