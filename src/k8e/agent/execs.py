"""Commands: their life from request to forgotten, independent of any link.

An exec keeps its unacknowledged output and its end until the engine forgets it, so a lost link loses nothing and a
repeated request attaches instead of starting twice. A pipe is read only while its outbox has room, so a slow reader
blocks the writer. The end is told once the main process is reaped and what it had written is drained; a background
child that holds the pipe open delays it by at most DRAIN_S.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import termios
import time

from . import foreground, memory, procs
from .fields import Refusal
from .pipes import Reader, Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

    from .link import Link
    from .loop import Loop, Timer
    from .runners import Handle, Runners

__all__ = ["Exec", "Launch", "set_size"]

DRAIN_S = 0.2
_PIPE_BYTES = 1024 * 1024
_F_SETPIPE_SZ = 1031
_PTY_EOF = b"\x04"
_EXIT_NOT_FOUND = 127
_EXIT_NOT_RUNNABLE = 126
_MAX_ATTEMPTS = 4
_SHOWN_CHARS = 256
"""Of a program's name, in a list."""
_MAX_FOLLOWERS = 16
"""Streams that read one command beside its reader."""


class Launch:
    """What to start: everything a runner needs but the descriptors."""

    __slots__ = ("argv", "cleanup", "cwd", "env", "size", "stdin", "timeout_s", "user")

    def __init__(self, argv: List[str], env: Dict[str, str], cwd: str) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.user: Optional[Tuple[int, int, List[int]]] = None
        self.stdin = False
        self.size: Optional[Tuple[int, int]] = None
        self.timeout_s: Optional[float] = None
        self.cleanup: Callable[[], None] = lambda: None

    def order(self) -> Dict[str, Any]:
        """The message for a runner."""
        return {
            "op": "spawn",
            "argv": self.argv,
            "env": self.env,
            "cwd": self.cwd,
            "user": self.user,
            "tty": self.size is not None,
        }


class Exec:
    """One command."""

    def __init__(self, loop: Loop, runners: Runners, number: str, digest: str = "") -> None:
        self.id = number
        self.digest = digest
        """Of what was to be run, in the engine's words."""
        self.pid = 0
        self.outcome: Optional[Dict[str, Any]] = None
        self.master = -1
        self.has_terminal = False
        self._loop = loop
        self._runners = runners
        self._handle: Optional[Handle] = None
        self._readers: Dict[int, Reader] = {}
        self._writer: Optional[Writer] = None
        self._early_input: List[bytes] = []
        """What came while an interpreter was awaited: no more than a window of it."""
        self._is_input_finished = False
        self._subscriber: Optional[Tuple[Link, int]] = None
        """Its reader's stream: whose acknowledgements make room for more output, and which gives input."""
        self._followers: Dict[Tuple[Link, int], Mapping[int, int]] = {}
        """Streams that only read, and the offsets from which they do."""
        self._stream_input_bytes = 0
        """Of input that came on its readers' streams; other input has offsets of its own."""
        self._offset_input_bytes = 0
        """Of input that came with an offset, one request each."""
        self._eof_offset = -1
        """The last offset at which such input was said to end."""
        self._started_at = time.time()
        self._born = time.monotonic()
        self._memory_kills = memory.kills()
        self._timer: Optional[Timer] = None
        self._verdict = ""
        self._early: Dict[int, None] = {}
        """Signals that came before it was known to have started, in their order: output may be quicker than that news."""
        self._end: Optional[Dict[str, Any]] = None
        self._cleanup: Callable[[], None] = lambda: None
        self._program = ""
        self._cwd = ""
        self._order: Dict[str, Any] = {}
        self._fds: List[int] = []
        self._attempts = 0
        self._witness: Optional[foreground.Witness] = None

    @property
    def is_running(self) -> bool:
        """Whether its end has not been told yet."""
        return self.outcome is None

    def view(self) -> Dict[str, Any]:
        """What a list says of it."""
        return {
            "id": self.id,
            "running": self.is_running,
            "pid": self.pid,
            "pty": self.has_terminal,
            "input": self._is_reading,
            "program": self._program[:_SHOWN_CHARS],
            "started_at": self._started_at,
        }

    @property
    def is_pty(self) -> bool:
        """Whether it has a terminal."""
        return self.master >= 0

    @property
    def runner_pid(self) -> int:
        """The ancestor of everything it started; 0 when nothing is left."""
        return self._handle.pid if self._handle is not None else 0

    # Starting.

    def start(self, launch: Launch) -> None:
        """Hand the command to a runner."""
        self._begin(launch)
        self._order = launch.order()
        self._fds = self._open_terminal(launch) if launch.size is not None else self._open_pipes(launch)
        if not (self._runners.is_tight and self._runners.make_room(self._send_order)):
            self._send_order()

    def _send_order(self) -> None:
        if self._end is not None:
            return
        if self._verdict:
            # Whoever killed it while it waited for its turn found nothing to kill, and will not come again.
            self._exited(signal.SIGKILL)
            return
        self._attempts += 1
        self._handle = self._runners.take(self._hear)
        self._handle.send(self._order, self._fds)

    def _drop_fds(self) -> None:
        """The command's ends of its pipes: kept until it has started, in case it must be tried again."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def adopt(self, launch: Launch, handle: Handle, fds: Tuple[int, int], stdin: int, pid: int) -> None:
        """Take over an interpreter that waits in a runner, with our ends of its pipes; -1 for no input."""
        self._begin(launch)
        self._handle = handle
        handle.owner = self._hear
        self._connect({1: fds[0], 2: fds[1]}, stdin)
        self._hear({"started": pid})
        if self._verdict:
            self._runners.kill(handle)

    def refuse(self, detail: str, code: int = _EXIT_NOT_FOUND) -> None:
        """It cannot be started at all: an exec that has ended already."""
        self._connect({}, -1)
        self._not_started(code, detail)

    def _begin(self, launch: Launch) -> None:
        self._born = time.monotonic()
        self._cleanup = launch.cleanup
        self._program, self._cwd = launch.argv[0], launch.cwd
        if launch.timeout_s is not None and launch.timeout_s > 0:
            self._timer = self._loop.later(launch.timeout_s, lambda: self.kill("timed_out"))

    def _open_terminal(self, launch: Launch) -> List[int]:
        master, slave = os.openpty()
        # One that stays open as long as the command lives: closing the last one hangs up on a program which
        # has closed its own terminal and is about to exit, and that would change its exit code.
        self.master = os.dup(master)
        self.has_terminal = True
        set_size(master, *(launch.size or (24, 80)))
        if launch.user is not None:
            os.fchown(slave, launch.user[0], launch.user[1])
        self._connect({1: master}, os.dup(master))
        fds = [slave, os.dup(slave), os.dup(slave)]
        if foreground.is_needed():
            self._witness = foreground.Witness()
            fds.append(self._witness.hand_over())
        return fds

    def _open_pipes(self, launch: Launch) -> List[int]:
        out, child_out = os.pipe()
        err, child_err = os.pipe()
        child_in, stdin = os.pipe() if launch.stdin else (os.open(os.devnull, os.O_RDONLY), -1)
        for fd in (out, err):
            try:
                fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
            except OSError:
                pass  # past the user's pipe quota: slower, not wrong
        self._connect({1: out, 2: err}, stdin)
        return [child_in, child_out, child_err]

    def _connect(self, outputs: Mapping[int, int], stdin: int) -> None:
        self._readers = {channel: Reader(self._loop, fd, self._output) for channel, fd in outputs.items()}
        self._writer = Writer(self._loop, stdin)
        self._writer.on_delivered = self._delivered
        early, self._early_input = self._early_input, []
        for data in early:
            self._writer.feed(data)
        if self._is_input_finished:
            self._writer.finish()
        if self._subscriber is not None:  # it came while an interpreter was awaited
            link, number = self._subscriber
            for channel, reader in self._readers.items():
                link.mux.attach(number, channel, reader.outbox)
        for (link, number), offsets in self._followers.items():
            self._feed_follower(link, number, offsets)

    def _feed_follower(self, link: Link, number: int, offsets: Mapping[int, int]) -> None:
        for channel, reader in self._readers.items():
            link.mux.attach(number, channel, reader.outbox, cursor=offsets.get(channel, 0), is_follower=True)

    # What the runner says.

    def _hear(self, message: Dict[str, Any]) -> None:
        if "started" in message:
            self.pid = int(message["started"])
            self._drop_fds()
            self._tell("started", {"pid": self.pid})
            self._signal_early()
        elif "failed" in message:
            self._fail(int(message["failed"]), str(message.get("step")))
        elif "exited" in message:
            self._exited(int(message["exited"]))
        elif "empty" in message:
            self._emptied()
        elif "lost" in message:
            self._handle = None
            self._verdict = self._verdict or "killed"
            self._exited(signal.SIGKILL, detail="its runner was killed from inside the sandbox")

    def _fail(self, code: int, step: str) -> None:
        if code == errno.EAGAIN and self._attempts < _MAX_ATTEMPTS and self._runners.make_room(self._send_order):
            return
        if step == "cwd":
            self._not_started(_EXIT_NOT_RUNNABLE, "%s: %s" % (self._cwd, os.strerror(code)))
        elif code in (errno.ENOENT, errno.ENOTDIR):
            self._not_started(_EXIT_NOT_FOUND, "%s: command not found" % self._program)
        else:
            self._not_started(_EXIT_NOT_RUNNABLE, "%s: %s" % (self._program, os.strerror(code)))

    def _not_started(self, code: int, detail: str) -> None:
        self._settle({"code": code, "signal": None, "reason": "not_started", "detail": detail})

    def _exited(self, status: int, detail: str = "") -> None:
        if os.WIFSIGNALED(status):
            code, number, reason = None, os.WTERMSIG(status), self._verdict or "signaled"
            if reason == "signaled" and number == signal.SIGKILL and memory.kills() > self._memory_kills:
                reason = "oom_killed"
        else:
            code, number = os.WEXITSTATUS(status), None
            # A command that caught the time-out's first blow and left by itself has still run out of time.
            reason = self._verdict if self._verdict and code else "exited"
        self._settle({"code": code, "signal": number, "reason": reason, "detail": detail})

    def _settle(self, end: Dict[str, Any]) -> None:
        if self._end is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._witness is not None:
            self._witness.close()
            self._witness = None
        if self._handle is not None:
            self._handle.is_leftover = True
        self._drop_fds()
        self._end = dict(end, duration_ms=int((time.monotonic() - self._born) * 1000))
        for reader in self._readers.values():
            if end["reason"] == "not_started":
                reader.close()
            else:
                reader.start_draining(DRAIN_S)
        self._conclude()

    def _conclude(self) -> None:
        if self._end is None or self.outcome is not None or any(r.is_open for r in self._readers.values()):
            return
        self.outcome = self._end
        if self.is_pty:
            os.close(self.master)
            self.master = -1
        if self._writer is not None:
            self._writer.close()
        self._cleanup()
        for link, number in self._streams():
            self._tell_end(link, number, self.outcome)

    def _emptied(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._runners.give_back(handle)

    # What the engine asks.

    def kill(self, verdict: str = "killed") -> None:
        """End everything that it started, now or after its main process."""
        if self._end is None:
            self._verdict = self._verdict or verdict
            if self.pid:
                # At once, and not by way of the runner: its turn may come late among the processes of a bomb.
                procs.send_group(self.pid, signal.SIGKILL)
        if self._handle is not None:
            self._runners.kill(self._handle)

    def signal(self, number: int) -> None:
        """Signal its process group, or the foreground group of its terminal."""
        if self._end is not None:
            return
        if not self.pid:
            self._early[number] = None
            return
        group = self.foreground() if self.is_pty else self.pid
        self._signal_group(group if group > 1 else self.pid, number)

    def _signal_early(self) -> None:
        early, self._early = self._early, {}
        for number in early:
            try:
                self.signal(number)
            except ProcessLookupError:
                return  # it is over, and so is what the signals were for

    def _signal_group(self, group: int, number: int) -> None:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            # A terminal names its last job until the shell has taken its place again, also when that has ended.
            if group == self.pid:
                raise
            os.killpg(self.pid, number)

    def mark(self, verdict: str) -> None:
        """Say why it is about to die."""
        self._verdict = self._verdict or verdict

    def foreground(self) -> int:
        """The terminal's foreground process group, -1 when unknown."""
        if self._witness is not None:
            return self._witness.ask()
        try:
            return os.tcgetpgrp(self.master) if self.is_pty else -1
        except OSError:
            return -1

    def witness_pid(self) -> int:
        """The process of ours in its terminal's session, 0 for none."""
        if self._witness is not None and not self._witness.pid:
            self._witness.ask()
        return self._witness.pid if self._witness is not None else 0

    def is_input_awaited(self) -> bool:
        """Whether the foreground group sleeps, as it does while it waits for input."""
        group = self.foreground()
        stat = procs.stat_of(group) if group > 0 else None
        return stat is not None and stat[1] == "S" and not any(True for _ in procs.descendants(group))

    def attach(self, link: Link, number: int, offsets: Mapping[int, int]) -> None:
        """Send what is retained, and all that comes, to this stream; the newest stream wins."""
        if self._subscriber is not None:
            self._subscriber[0].fail(self._subscriber[1], "conflict", "another stream took over this command")
        self._subscriber = (link, number)
        for channel, reader in self._readers.items():
            link.mux.attach(number, channel, reader.outbox, cursor=offsets.get(channel, 0))
        if self.outcome is not None:
            self._tell_end(link, number, self.outcome)
        link.flush()

    def follow(self, link: Link, number: int, offsets: Mapping[int, int]) -> None:
        """Send this stream, too, what is retained and all that comes, as long as it keeps up with the reader."""
        if len(self._followers) >= _MAX_FOLLOWERS:
            raise Refusal("exhausted", "command %s has %d followers already" % (self.id, _MAX_FOLLOWERS))
        self._followers[link, number] = offsets
        if self.pid:
            link.mux.event(number, "started", {"pid": self.pid})
        self._feed_follower(link, number, offsets)
        if self.outcome is not None:
            self._tell_end(link, number, self.outcome)
        link.flush()

    def detach(self, link: Link, number: int) -> None:
        """That stream is gone; the command goes on."""
        if self._subscriber == (link, number):
            self._subscriber = None
        self._followers.pop((link, number), None)

    def _streams(self) -> List[Tuple[Link, int]]:
        return [*([self._subscriber] if self._subscriber is not None else []), *self._followers]

    @property
    def stdin_received(self) -> int:
        """The offset from which a resumed engine sends input."""
        return self._stream_input_bytes

    def feed(self, offset: int, data: bytes) -> None:
        """Input on the reader's stream; a repeated piece is recognised by its offset."""
        fresh = data[max(0, self._stream_input_bytes - offset) :]
        self._stream_input_bytes += len(fresh)
        if self._writer is None:
            self._early_input.append(fresh)
        else:
            self._writer.feed(fresh)

    def take_input(self, offset: int, data: bytes, is_last: bool) -> Tuple[int, bool]:
        """Input that says where it belongs: how much was taken of all so far, and whether more may come."""
        if offset > self._offset_input_bytes:
            raise Refusal("invalid", "input goes on at %d, and not at %d" % (self._offset_input_bytes, offset))
        fresh = data[self._offset_input_bytes - offset :]
        if self._take(fresh):
            self._offset_input_bytes += len(fresh)
        end = offset + len(data)
        # Said again it does nothing: at a terminal it would end the program that reads next, too.
        if is_last and self._offset_input_bytes >= end > self._eof_offset:
            self._eof_offset = end
            self.finish_input()
        return self._offset_input_bytes, self._is_reading

    def append_input(self, data: bytes, is_last: bool) -> Tuple[bool, bool]:
        """Input by whoever: whether it was taken, behind all that came before, and whether more may come."""
        is_taken = self._is_reading and self._take(data)
        if is_taken and is_last:
            self.finish_input()
        return is_taken, self._is_reading

    def _take(self, data: bytes) -> bool:
        if not data:
            return True
        if not self.has_input_room:
            return False
        if self._writer is not None:
            self._writer.feed(data)
        return True

    @property
    def _is_reading(self) -> bool:
        if self._writer is None:  # it waits for its interpreter
            return self.is_running and not self._is_input_finished
        return self._writer.is_open and not self._is_input_finished and self._end is None

    @property
    def has_input_room(self) -> bool:
        """Whether input would be taken now."""
        return self._writer is not None and self._writer.has_room

    def finish_input(self) -> None:
        """No more input. At a terminal the program that reads is told so, and whatever reads next may be given more."""
        if self.has_terminal and self._writer is not None:
            self._writer.feed(_PTY_EOF)
            return
        self._is_input_finished = True
        if self._writer is not None:
            self._writer.finish()

    def acked(self) -> None:
        """An outbox may have room again."""
        for reader in self._readers.values():
            reader.pump()

    # What the engine is told.

    def _output(self) -> None:
        for link, number in self._streams():
            link.mux.wake(number)
            link.flush()
        self._conclude()

    def _delivered(self) -> None:
        if self._subscriber is not None and self._writer is not None:
            link, number = self._subscriber
            # Nothing is acknowledged that may still wait, whoever it is from.
            link.mux.ack(number, 0, max(0, self._stream_input_bytes - self._writer.pending))
            link.flush()

    def _tell(self, name: str, fields: Dict[str, Any]) -> None:
        for link, number in self._streams():
            link.mux.event(number, name, fields)
            link.flush()

    @staticmethod
    def _tell_end(link: Link, number: int, outcome: Dict[str, Any]) -> None:
        link.mux.event(number, "exited", outcome, after_data=True)
        link.mux.end(number, {})
        link.flush()


def set_size(fd: int, rows: int, cols: int) -> None:
    """Tell a terminal its size."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows & 0xFFFF, cols & 0xFFFF, 0, 0))
