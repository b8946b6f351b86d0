"""The agent's side of its runners: start them, hand them out, take them back, survive their death.

At least one spare runner waits while nothing hurries. A runner that is killed from inside counts as the death of its
command; what it leaves behind falls to PID 1, whose children are runners and nothing else, so every other child is
an orphan and is killed at once.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys

from . import libc, limits, procs, runner
from .loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence

    from .loop import Loop, Timer

    Owner = Callable[[Dict[str, Any]], None]

__all__ = ["Handle", "Runners", "settle"]

_SPARES = 1
_MAX_IDLE = 3
_REFILL_DELAY_S = 0.05
_KILL_PATIENCE_S = 2.0
_SEND_PATIENCE_S = 1.0
_CALM_S = 2.0
_ROOM_CHECK_S = 0.02
_ROOM_CHECKS = 250
_FEW = 16
"""Free processes below which a bomb is at work: an ordinary pipeline needs about as many."""
_MAX_HEARD = 64 * 1024
_OOM_SCORE_ADJ = b"500"
_HOST_CGROUP = "/.k8e-cgroup"
# The default set of Docker and containerd, by capability number.
_COMMAND_CAPABILITIES = sum(1 << n for n in (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31))


class Handle:
    """One runner, seen from the agent."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self.sock = sock
        self.owner: Optional[Owner] = None
        self.is_dead = False
        self.is_leftover = False
        """Its command has ended and left processes behind."""
        self.is_under_siege = False
        """A fork bomb in it is being killed."""
        self._heard = b""

    def send(self, message: Dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Tell the runner; one that does not listen is ended, and its death is noticed elsewhere."""
        try:
            runner.send(self.sock, message, fds)
        except OSError:
            procs.send(self.pid, signal.SIGKILL)

    def hear(self) -> List[Dict[str, Any]]:
        """What the runner has said since.

        Raises:
            EOFError: it hung up or talks nonsense.
        """
        try:
            piece = self.sock.recv(_MAX_HEARD, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError as error:
            raise EOFError from error
        if not piece or len(self._heard) > _MAX_HEARD:
            raise EOFError
        *lines, self._heard = (self._heard + piece).split(b"\n")
        return [_message(line) for line in lines]


def _message(line: bytes) -> Dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise EOFError from error
    if not isinstance(message, dict):
        raise EOFError  # noqa: TRY004  # not a type mistake of ours: the peer is done for
    return message


class Runners:
    """All runners of this sandbox."""

    def __init__(self, loop: Loop, prepare: Callable[[], None]) -> None:
        self._loop = loop
        self._prepare = prepare
        self._idle: List[Handle] = []
        self._all: Dict[int, Handle] = {}
        self._refill: Optional[Timer] = None
        self._shrink: Optional[Timer] = None

    @property
    def pids(self) -> List[int]:
        """The runners' own process ids."""
        return list(self._all)

    def take(self, owner: Owner) -> Handle:
        """A runner for one command; `owner` hears what it says and {"lost": true} if it dies."""
        handle = self._idle.pop() if self._idle else self._start()
        handle.owner = owner
        self.refill_later()
        return handle

    def give_back(self, handle: Handle) -> None:
        """The command left nothing behind: the runner can serve again."""
        handle.owner = None
        self._relieve(handle)
        if len(self._idle) < _MAX_IDLE and not handle.is_dead:
            self._idle.append(handle)
            self._shrink_later()
        else:
            self._drop(handle)

    def _shrink_later(self) -> None:
        """A runner weighs as much as a small shell: keep several only while commands come."""
        if self._shrink is not None:
            self._shrink.cancel()
        self._shrink = self._loop.later(_CALM_S, self._drop_idle)

    def _drop_idle(self) -> None:
        while len(self._idle) > _SPARES:
            self._drop(self._idle.pop(0))

    def refill_later(self) -> None:
        """Start a spare when there is none, but not while a short command, which gives its own back, is in a hurry."""
        if len(self._idle) < _SPARES:
            if self._refill is not None:
                self._refill.cancel()
            self._refill = self._loop.later(_REFILL_DELAY_S, self.refill)

    def refill(self) -> None:
        """Start what is missing."""
        while len(self._idle) < _SPARES:
            self._idle.append(self._start())

    def kill(self, handle: Handle) -> None:
        """End everything that the runner's command started; a runner that does not obey is ended itself."""
        if limits.free_processes() < _FEW:
            handle.is_under_siege = True
            limits.forbid_forks()
        handle.send({"op": "kill"})
        pid, owner = handle.pid, handle.owner

        def insist() -> None:
            if handle.owner is owner and not handle.is_dead and procs.children(pid):
                self._sweep(handle)

        self._loop.later(_KILL_PATIENCE_S, insist)

    @property
    def is_tight(self) -> bool:
        """Whether finished commands have left so much behind that the next one could hardly fork."""
        return any(handle.is_leftover for handle in self._all.values()) and limits.free_processes() < _FEW

    def make_room(self, then: Callable[[], None]) -> bool:
        """End the leftovers of one finished command and call `then`; False when there are none to end.

        A process limit that is used up by what a finished command left behind would else end the session: nothing
        could be started any more, not even `kill`. The command with the most leftovers pays, because it is the bomb.
        A running command is never touched.
        """
        left = [handle for handle in self._all.values() if handle.is_leftover or handle.is_under_siege]
        if not left:
            return False
        victim = max(left, key=lambda handle: sum(1 for _ in procs.descendants(handle.pid)))
        if not victim.is_under_siege:
            self.kill(victim)
        self._when_empty(victim, _ROOM_CHECKS, then)
        return True

    def _when_empty(self, handle: Handle, checks: int, then: Callable[[], None]) -> None:
        if checks and (handle.is_leftover or handle.is_under_siege) and not handle.is_dead:
            self._loop.later(_ROOM_CHECK_S, lambda: self._when_empty(handle, checks - 1, then))
        else:
            then()

    def _relieve(self, handle: Handle) -> None:
        handle.is_leftover = False
        if handle.is_under_siege:
            handle.is_under_siege = False
            limits.allow_forks()

    def _sweep(self, handle: Handle) -> None:
        procs.kill_tree(handle.pid)
        procs.send(handle.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Collect every dead child of PID 1."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            handle = self._all.pop(pid, None)
            if handle is not None:
                self._bury(handle)
        self._kill_orphans()

    def _bury(self, handle: Handle) -> None:
        self._drop(handle)
        self._relieve(handle)
        if handle in self._idle:
            self._idle.remove(handle)
        owner, handle.owner = handle.owner, None
        self._kill_orphans()
        if owner is not None:
            owner({"lost": True})
        self.refill_later()

    def _kill_orphans(self) -> None:
        for pid in procs.children(os.getpid()):
            if pid not in self._all:
                procs.send(pid, signal.SIGKILL)

    def _drop(self, handle: Handle) -> None:
        if not handle.is_dead:
            handle.is_dead = True
            self._loop.unwatch(handle.sock.fileno())
            handle.sock.close()

    def _start(self) -> Handle:
        ours, theirs = socket.socketpair()
        ours.settimeout(_SEND_PATIENCE_S)
        gc.collect()
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            self._become_runner(theirs)
        theirs.close()
        handle = self._all[pid] = Handle(pid, ours)
        self._loop.watch(ours.fileno(), READ, lambda events: self._hear(handle))
        return handle

    def _become_runner(self, sock: socket.socket) -> None:
        """The child's part of the fork; never returns."""
        try:
            signal.set_wakeup_fd(-1)
            gc.disable()
            self._prepare()
            _close_all_but({0, 1, 2, sock.fileno()})
            runner.Runner(sock).run()
        except Exception:  # noqa: BLE001  # the runner's own edge; its death is told to whoever waits for the command
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)

    def _hear(self, handle: Handle) -> None:
        try:
            messages = handle.hear()
        except EOFError:
            self._drop(handle)
            procs.send(handle.pid, signal.SIGKILL)
            return
        for message in messages:
            if handle.owner is not None:
                handle.owner(message)


def _close_all_but(kept: Any) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass


def settle(cgroup: Optional[str] = _HOST_CGROUP) -> None:
    """What a runner does first, so that commands inherit it: limits' cgroup, OOM score, priority, capabilities."""
    libc.become_subreaper()
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    _write("/proc/self/oom_score_adj", _OOM_SCORE_ADJ)
    if cgroup is not None:
        _write(cgroup, b"0")
    # SAFETY: the agent may hold CAP_SYS_ADMIN under gVisor to bind a workspace; commands must never inherit it.
    libc.drop_capabilities(_COMMAND_CAPABILITIES)


def _write(path: str, data: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, data)
    except OSError:
        pass
    finally:
        os.close(fd)
