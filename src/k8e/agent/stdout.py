"""Runs inside the image's own interpreter, at its start: what a program prints arrives line by line, as at a terminal.

To a pipe an interpreter writes only when 8 KiB have gathered, so nobody sees what it does, and a time-out loses the rest.
A write for each line costs a program that prints much fifty times as long. So this does both: it writes each line, until
many come within milliseconds. Then it lets them gather, and a thread writes what there is every few milliseconds, until
nothing comes any more.

A module of the prebuilt environment, imported by its `.pth` file and then forgotten; for Python 3.8 and later. It imports
nothing but what every fresh interpreter has imported, and `atexit`.
"""

import _signal  # type: ignore[import-not-found]
import _thread
import atexit
import io
import os
import sys
import time

_MANY = 32
_AT_ONCE_S = 0.005
_PAUSE_S = 0.01
_QUIET_PAUSES = 5
"""After so many in which nothing came, each line is written again."""
_STARTS_A_PROGRAM = frozenset(("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"))
_FORMAT, _PIPE = 0o170000, 0o010000


class _Pipe(io.FileIO):
    """Standard output, which tells when many lines come."""

    gathering: "_Gathering"

    def write(self, data: bytes) -> int:  # type: ignore[override]
        written = super().write(data)
        self.gathering.wrote(written or 0)
        return written


class _Gathering:
    """Whether lines are written one by one or gather, and the thread that writes them in the second case."""

    def __init__(self, out: io.TextIOWrapper) -> None:
        self._out = out
        self._pid = os.getpid()
        self._writes = 0
        self._since = time.monotonic()
        self._bytes = 0
        self._is_on = False
        self._is_hooked = False
        self._flushing = _thread.allocate_lock()
        self._end = _thread.allocate_lock()
        """Held while the thread shall go on."""

    def wrote(self, count: int) -> None:
        """Called for each write, by whichever thread."""
        self._bytes += count
        self._writes += 1
        if self._writes < _MANY or self._is_on:
            return
        now = time.monotonic()
        if now - self._since < _AT_ONCE_S:
            self._begin()
        self._writes, self._since = 0, now

    def _begin(self) -> None:
        if not self._is_hooked:
            self._is_hooked = True
            sys.addaudithook(self._before_program)
        self._is_on = True
        self._end.acquire(False)
        try:
            # Here the output is being written, and so cannot be changed.
            _thread.start_new_thread(self._tend, ())
        except RuntimeError:
            self._is_on = False  # there is no room for a thread

    def _tend(self) -> None:
        # Signals are for the program's own threads.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        try:
            self._set(line_buffering=False)
            quiet = 0
            while quiet < _QUIET_PAUSES and not self._end.acquire(timeout=_PAUSE_S):
                before = self._bytes
                self._flush()
                quiet = quiet + 1 if self._bytes == before else 0
            self._set(line_buffering=True)
        except (OSError, ValueError):
            pass  # nobody reads it, or it is closed: the program meets that itself
        self._is_on = False

    def _set(self, *, line_buffering: bool, write_through: bool = False) -> None:
        with self._flushing:
            self._out.reconfigure(line_buffering=line_buffering, write_through=write_through)

    def _flush(self) -> None:
        """Write what has gathered.

        Of the two buffers of an output only the inner one is made for threads. If we took the text of the outer one while
        one thread of the program writes, what another one prints next could come before it. So where there are several,
        nothing stays in the outer one.
        """
        if _thread._count() > 1 and not self._out.write_through:  # noqa: SLF001 - there is no other way to ask
            self._set(line_buffering=False, write_through=True)
        with self._flushing:
            (self._out.buffer if self._out.write_through else self._out).flush()

    def finish(self) -> None:
        """The interpreter ends: no thread may be writing then. What is still printed, it writes at its very end."""
        while self._is_on and os.getpid() == self._pid:
            if self._end.locked():
                self._end.release()
            time.sleep(0.0005)
        self._is_on = True

    def _before_program(self, event: str, arguments: object) -> None:
        if self._is_on and event in _STARTS_A_PROGRAM:
            self._flush()

    def before_fork(self) -> None:
        self._flushing.acquire()
        if self._is_on:
            self._out.flush()

    def after_fork_in_parent(self) -> None:
        self._flushing.release()

    def after_fork_in_child(self) -> None:
        self._flushing.release()
        if self._is_on:
            # The thread is the parent's.
            self._is_on, self._pid = False, os.getpid()
            self._out.reconfigure(line_buffering=True)


def _is_plain_pipe(out: io.TextIOWrapper) -> bool:
    """Whether it is what an interpreter makes of a pipe: no terminal, no `-u`, nothing of somebody else's."""
    try:
        if type(out) is not io.TextIOWrapper or out.line_buffering or out.write_through or out.fileno() != 1:
            return False
        return type(out.buffer) is io.BufferedWriter and type(out.buffer.raw) is io.FileIO and _is_pipe(1)
    except (OSError, ValueError):
        return False


def _is_pipe(fd: int) -> bool:
    return os.fstat(fd).st_mode & _FORMAT == _PIPE


def _write_lines(old: io.TextIOWrapper) -> io.TextIOWrapper:
    """The same output, written line by line."""
    raw = _Pipe(1, "wb", closefd=False)
    raw.name = "<stdout>"
    out = io.TextIOWrapper(
        io.BufferedWriter(raw),  # type: ignore[type-var]
        encoding=old.encoding,
        errors=old.errors,
        newline="\n",
        line_buffering=True,
    )
    out.mode = "w"  # type: ignore[misc]
    raw.gathering = gathering = _Gathering(out)
    # The first that is registered is called last.
    atexit.register(gathering.finish)
    os.register_at_fork(
        before=gathering.before_fork,
        after_in_parent=gathering.after_fork_in_parent,
        after_in_child=gathering.after_fork_in_child,
    )
    return out


# To whoever looks it is what it always was.
_Pipe.__module__, _Pipe.__name__, _Pipe.__qualname__ = "_io", "FileIO", "FileIO"
if _is_plain_pipe(sys.stdout):  # type: ignore[arg-type]
    sys.stdout = sys.__stdout__ = _write_lines(sys.stdout)  # type: ignore[misc, arg-type]
