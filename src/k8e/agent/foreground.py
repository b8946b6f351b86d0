"""Whose turn it is on a terminal, where only members of its session may ask.

Linux tells the master's holder. gVisor tells nobody outside the session, and its /proc has no tpgid, so there a small
process joins each terminal's session before the command starts: a group of its own, no terminal open except while it
asks, a child of the runner, never of the command.
"""

from __future__ import annotations

import os
import signal
import socket
import struct

__all__ = ["Witness", "is_needed", "start"]

_ANSWER = struct.Struct("ii")
_PATIENCE_S = 0.5
_TERMINAL = "/dev/tty"


def is_needed() -> bool:
    """Whether the master's holder cannot ask by itself."""
    return "gvisor" in os.uname().release


class Witness:
    """The agent's end: asks, and never waits long, because commands can stop or kill the other end."""

    def __init__(self) -> None:
        self._sock, self._theirs = socket.socketpair()
        self._sock.settimeout(_PATIENCE_S)
        self.pid = 0

    def hand_over(self) -> int:
        """The descriptor for the process inside the session; the caller closes it."""
        return self._theirs.detach()

    def ask(self) -> int:
        """The foreground process group, -1 when unknown."""
        try:
            self._sock.sendall(b"?")
            self.pid, group = _ANSWER.unpack(self._sock.recv(_ANSWER.size))
        except (OSError, struct.error):
            return -1
        return int(group)

    def close(self) -> None:
        """The other end leaves when it sees this."""
        self._sock.close()


def start(fd: int) -> None:
    """Called by a new session's leader before it becomes the command: leave a witness in the session."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:  # twice, so that a command that waits for all its children does not wait for this one
            _attend(fd)
    finally:
        os._exit(0)


def _attend(fd: int) -> None:
    os.setpgid(0, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    os.dup2(fd, 0)
    os.closerange(1, 256)
    sock = socket.socket(fileno=0)
    while sock.recv(1):
        sock.sendall(_ANSWER.pack(os.getpid(), _foreground()))


def _foreground() -> int:
    try:
        fd = os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        return os.tcgetpgrp(fd)
    except OSError:
        return -1
    finally:
        os.close(fd)
