"""The process that starts a command and stays its ancestor: a child subreaper with one command at a time.

Whatever the command forks away (`setsid`, double forks) becomes a child of its runner, so the runner always knows
what is left of a command and can end all of it. It starts commands with `posix_spawn`, because a fork of a Python
process costs about 20 ms under gVisor; only another user or a terminal needs the fork.

Messages are JSON on a socket pair with the agent, length-prefixed on the way in, a line each on the way out (the
agent must never wait for the rest of one); descriptors come by SCM_RIGHTS.
    agent → runner  {"op": "spawn", ...} + descriptors | {"op": "kill"}
    runner → agent  {"started": pid} | {"failed": errno, "step": …} | {"exited": status} | {"empty": true}
"""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios

from . import foreground, procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

__all__ = ["PARK_FD", "Runner", "find_program", "send"]

_LENGTH = struct.Struct(">I")
_MAX_MESSAGE = 64 * 1024 * 1024
_MAX_FDS = 8
_KILL_ROUND_MS = 20
_DEFAULT_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_SHELL = "/bin/sh"
PARK_FD = 199
"""Where a parked interpreter finds its line to the agent; above anything a runner has open."""
_CHILD_FDS = (0, 1, 2, PARK_FD, PARK_FD - 1)


def send(sock: socket.socket, message: Dict[str, Any], fds: Sequence[int] = ()) -> None:
    """One message, with descriptors for the other side to own."""
    body = json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([_LENGTH.pack(len(body))], rights)
    sock.sendall(body)


def _receive(sock: socket.socket) -> Tuple[Optional[Dict[str, Any]], List[int]]:
    """The next message and its descriptors; None at the end."""
    fds = array.array("i")
    space = socket.CMSG_SPACE(_MAX_FDS * fds.itemsize)
    head, rights, _, _ = sock.recvmsg(_LENGTH.size, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if len(head) < _LENGTH.size:
        return None, list(fds)
    (length,) = _LENGTH.unpack(head)
    body = b""
    while len(body) < length <= _MAX_MESSAGE:
        piece = sock.recv(min(length - len(body), 1 << 20))
        if not piece:
            return None, list(fds)
        body += piece
    return json.loads(body), list(fds)


class Runner:
    """The runner's own loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._main = 0
        self._is_busy = False
        self._is_killing = False
        self._poll = select.poll()

    def run(self) -> None:
        """Serve until the agent hangs up."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        os.set_blocking(reader, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._poll.register(self._sock, select.POLLIN)
        self._poll.register(reader, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll(_KILL_ROUND_MS if self._is_killing else None):
                if fd == reader:
                    os.read(reader, 4096)
                elif not self._serve():
                    return
            if self._is_killing:
                procs.kill_tree(os.getpid())
            self._reap()

    def _say(self, message: Dict[str, Any]) -> None:
        self._sock.sendall(json.dumps(message).encode() + b"\n")

    def _serve(self) -> bool:
        message, fds = _receive(self._sock)
        try:
            if message is None:
                return False
            if message["op"] == "kill":
                self._kill()
            else:
                self._spawn(message, fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _kill(self) -> None:
        self._is_killing = self._is_busy
        if self._main:
            # In one call, before anything is looked up: among hundreds of processes of a bomb each call of ours may
            # wait its turn for long.
            procs.send_group(self._main, signal.SIGKILL)

    def _spawn(self, order: Dict[str, Any], fds: List[int]) -> None:
        self._is_busy = True
        step = "cwd"
        try:
            os.chdir(order["cwd"])
            step = "exec"
            slow = order["tty"] or order["user"] is not None
            self._main = _fork(order, fds) if slow else _spawn_found(order, fds)
        except OSError as error:
            self._say({"failed": error.errno, "step": step})
        else:
            self._say({"started": self._main})
        finally:
            os.chdir("/")

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._rest()
                return
            if pid == 0:
                return
            if pid == self._main:
                self._main = 0
                self._say({"exited": status})

    def _rest(self) -> None:
        if self._is_busy:
            self._is_busy = self._is_killing = False
            self._say({"empty": True})


def _candidates(name: str, path: str) -> List[str]:
    if "/" in name:
        return [name]
    return [os.path.join(place or ".", name) for place in path.split(":")] if name else []


def find_program(name: str, path: str) -> str:
    """What execvp(3) would run.

    Raises:
        OSError: ENOENT, or EACCES when something was there that may not be run.
    """
    code = errno.ENOENT
    for candidate in _candidates(name, path):
        if os.path.isdir(candidate):
            code = errno.EACCES if "/" in name else code
        elif os.access(candidate, os.X_OK):
            return candidate
        elif os.path.exists(candidate):
            code = errno.EACCES
        elif (
            "/" in name
            and os.path.lexists(os.path.dirname(candidate))
            and not os.path.isdir(os.path.dirname(candidate) or ".")
        ):
            code = errno.ENOTDIR
    raise OSError(code, os.strerror(code), name)


def _spawn_found(order: Dict[str, Any], fds: List[int]) -> int:
    env: Dict[str, str] = order["env"]
    program = find_program(order["argv"][0], env.get("PATH", os.defpath))
    try:
        return _posix_spawn(program, order["argv"], env, fds)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # execvp(3): a file without a header is a shell script.
        return _posix_spawn(_SHELL, [_SHELL, program, *order["argv"][1:]], env, fds)


def _posix_spawn(program: str, argv: List[str], env: Dict[str, str], fds: List[int]) -> int:
    return os.posix_spawn(
        program,
        argv,
        env,
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in zip(_CHILD_FDS, fds)],
        setsid=True,
        setsigmask=(),
        setsigdef=_DEFAULT_SIGNALS,
    )


def _fork(order: Dict[str, Any], fds: List[int]) -> int:
    """Start with another user or a controlling terminal; a pipe that closes at exec tells of failure."""
    env: Dict[str, str] = order["env"]
    program = find_program(order["argv"][0], env.get("PATH", os.defpath))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            _become(order, fds)
            os.execve(program, order["argv"], env)
        except OSError as error:
            os.write(writer, b"%d" % (error.errno or errno.EIO))
        finally:
            os._exit(127)
    os.close(writer)
    with open(reader, "rb") as file:
        failure = file.read()
    if failure:
        os.waitpid(pid, 0)
        raise OSError(int(failure), os.strerror(int(failure)), program)
    return pid


def _become(order: Dict[str, Any], fds: List[int]) -> None:
    os.setsid()
    for number, fd in zip(_CHILD_FDS, fds[:3]):
        os.dup2(fd, number)
    if order["tty"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for fd in fds[3:]:
            foreground.start(fd)
    signal.set_wakeup_fd(-1)
    for number in _DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if order["user"] is not None:
        uid, gid, groups = order["user"]
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
