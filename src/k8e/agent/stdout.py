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

__all__ = ()  # nothing is for others

_MANY = 32
_AT_ONCE_S = 0.005
_PAUSE_S = 0.01
_PAUSES = 20
"""Then each line is written again, until many come once more."""
_STARTS_A_PROGRAM = frozenset(("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"))
_FORMAT, _PIPE = 0o170000, 0o010000


class _Gathering:
    """Whether lines are written one by one or gather, and the thread that writes them in the second case.

    As long as each line is written, `write` of the output is ours, and counts: after the text was taken, when a signal's
    handler may do what it likes. While lines gather it is the output's own, and costs nothing.
    """

    def __init__(self, out: io.TextIOWrapper) -> None:
        self._out = out
        self._write = out.write
        self._pid = 0
        """Whose thread it is; a fork has none."""
        self._writes = 0
        self._since = time.monotonic()
        self._is_on = False
        self._is_over = False
        self._is_hooked = False
        self._end = _thread.allocate_lock()
        """Held while the thread shall go on."""
        out.write = self._counted  # type: ignore[method-assign]

    def _counted(self, text: str) -> int:
        taken = self._write(text)
        self._writes += 1
        if self._writes >= _MANY:
            now = time.monotonic()
            if now - self._since < _AT_ONCE_S and not self._is_on and not self._is_over:
                self._begin()
            self._writes, self._since = 0, now
        return taken

    def _begin(self) -> None:
        if not self._out.line_buffering or self._out.write_through:
            return  # the program has chosen otherwise
        if not self._is_hooked:
            self._is_hooked = True
            sys.addaudithook(self._before_program)
        self._is_on, self._pid = True, os.getpid()
        self._end.acquire(False)
        try:
            _thread.start_new_thread(self._tend, ())
        except RuntimeError:
            self._is_on = False  # there is no room for a thread

    def _tend(self) -> None:
        # Signals are for the program's own threads.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        try:
            # Of the two buffers of an output only the inner one is made for threads. If we took the text of the outer one
            # while one thread of the program writes, what another one prints next could come before it. So where there are
            # several, nothing stays in the outer one.
            is_shared = _thread._count() > 1  # noqa: SLF001 - there is no other way to ask
            self._out.reconfigure(line_buffering=False, write_through=is_shared)
            del self._out.write
            for _ in range(_PAUSES):
                if self._end.acquire(timeout=_PAUSE_S):
                    break
                (self._out.buffer if is_shared else self._out).flush()
            self._out.write = self._counted  # type: ignore[method-assign]
            self._out.reconfigure(line_buffering=True, write_through=False)
        except (AttributeError, OSError, ValueError):
            pass  # nobody reads it, it is closed or somebody else's: the program meets that itself
        self._is_on = False

    def stop(self) -> None:
        """Nothing is left gathered, and there is no thread."""
        while self._is_on and self._pid == os.getpid():
            if self._end.locked():
                self._end.release()
            time.sleep(0.0005)

    def finish(self) -> None:
        """The interpreter ends: no thread may be writing then."""
        self._is_over = True
        self.stop()

    def _before_program(self, event: str, arguments: object) -> None:
        if self._is_on and event in _STARTS_A_PROGRAM:
            self.stop()

    def after_fork_in_child(self) -> None:
        """Another thread may have begun it again while this one was forked."""
        if self._is_on:
            self._is_on = False
            self._out.write = self._counted  # type: ignore[method-assign]
            self._out.reconfigure(line_buffering=True, write_through=False)


def _is_plain_pipe(out: io.TextIOWrapper) -> bool:
    """Whether it is what an interpreter makes of a pipe: no terminal, no `-u`, nothing of somebody else's."""
    try:
        if type(out) is not io.TextIOWrapper or out.line_buffering or out.write_through or out.fileno() != 1:
            return False  # the environment goes through its `.pth` files twice: then it is line-buffered already
        return type(out.buffer) is io.BufferedWriter and type(out.buffer.raw) is io.FileIO and _is_pipe(1)
    except (OSError, ValueError):
        return False


def _is_pipe(fd: int) -> bool:
    return os.fstat(fd).st_mode & _FORMAT == _PIPE


def _write_lines(out: io.TextIOWrapper) -> None:
    """Have each line written."""
    out.reconfigure(line_buffering=True)
    gathering = _Gathering(out)
    # The first that is registered is called last.
    atexit.register(gathering.finish)
    os.register_at_fork(before=gathering.stop, after_in_child=gathering.after_fork_in_child)


if _is_plain_pipe(sys.stdout):  # type: ignore[arg-type]
    _write_lines(sys.stdout)  # type: ignore[arg-type]
