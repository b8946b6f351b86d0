"""A command's pipes: output into outboxes, input out of the link, neither ever blocking the loop."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import time

from k8e.wire.outbox import STDIN_WINDOW, WINDOW, Outbox

from .loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

    from .loop import Loop

__all__ = ["Reader", "Writer"]

_READ_BYTES = 256 * 1024

_WAITING_BYTES = 64 * 1024
"""Of input that was taken and that nobody has read; with a pipe's as much again."""


class Reader:
    """One output of a command on its way into an outbox."""

    def __init__(self, loop: Loop, fd: int, changed: Callable[[], None]) -> None:
        self.fd = fd
        self.outbox = Outbox(WINDOW)
        self._loop = loop
        self._changed = changed
        self._owed = 0
        self._deadline: Optional[float] = None
        os.set_blocking(fd, False)
        self.pump()

    @property
    def is_open(self) -> bool:
        return self.fd >= 0

    def pump(self) -> None:
        """Await output exactly while there is room for it."""
        if self.is_open:
            if self.outbox.room > 0:
                self._loop.watch(self.fd, READ, self._readable)
            else:
                # Out of the epoll set altogether: a hang-up would be reported again and again while we cannot read.
                self._loop.unwatch(self.fd)

    def _readable(self, events: int) -> None:
        try:
            data = os.read(self.fd, min(_READ_BYTES, self.outbox.room))
        except BlockingIOError:
            return
        except OSError:  # EIO: the last slave of a terminal was closed
            data = b""
        if not data:
            self.close()
            return
        self.outbox.append(data)
        self._owed -= len(data)
        if self._is_overdue():
            self.close()
            return
        self.pump()
        self._changed()

    def start_draining(self, timeout_s: float) -> None:
        """The main process is gone: what it wrote is owed to the reader, what comes later only for a while."""
        if self.is_open:
            self._owed = _queued(self.fd)
            self._deadline = time.monotonic() + timeout_s
            self._loop.later(timeout_s, self.expire)

    def _is_overdue(self) -> bool:
        return self._deadline is not None and self._owed <= 0 and time.monotonic() >= self._deadline

    def expire(self) -> None:
        """The bounded time is over; bytes that are owed are still read."""
        if self.is_open and self._owed <= 0:
            self.close()

    def close(self) -> None:
        """No more output; the outbox keeps what it has."""
        if self.is_open:
            self._loop.unwatch(self.fd)
            os.close(self.fd)
            self.fd = -1
            self.outbox.finish()
            self._changed()


def _queued(fd: int) -> int:
    try:
        return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])
    except OSError:
        return 0


class Writer:
    """A command's standard input."""

    def __init__(self, loop: Loop, fd: int) -> None:
        self.fd = fd
        self._loop = loop
        self._pending = b""
        self._is_finished = False
        self.on_delivered: Callable[[], None] = lambda: None
        if fd >= 0:
            os.set_blocking(fd, False)

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        self._pending += data
        self._write(0)

    @property
    def is_open(self) -> bool:
        """Whether somebody may still read what is written."""
        return self.fd >= 0

    @property
    def pending(self) -> int:
        """How many bytes wait to be read."""
        return len(self._pending)

    @property
    def has_room(self) -> bool:
        """Whether little waits to be read."""
        return len(self._pending) < _WAITING_BYTES

    def finish(self) -> None:
        """Close once everything is written."""
        if not self._is_finished:
            self._is_finished = True
            self._write(0)

    def _write(self, events: int) -> None:
        if self.fd >= 0 and self._pending:
            try:
                count = os.write(self.fd, self._pending[:STDIN_WINDOW])
            except BlockingIOError:
                count = 0
            except OSError:  # nobody reads any more: swallow, as a closed pipe would
                self.close()
                count = 0
            self._pending = self._pending[count:]
        self._settle()

    def _settle(self) -> None:
        if self.fd < 0:
            self._pending = b""
        if self._pending:
            self._loop.watch(self.fd, WRITE, self._write)
        elif self.fd >= 0:
            self._loop.unwatch(self.fd)
            if self._is_finished:
                self.close()
        self.on_delivered()

    def close(self) -> None:
        """Nobody will read any more."""
        if self.fd >= 0:
            self._loop.unwatch(self.fd)
            os.close(self.fd)
        self.fd = -1
