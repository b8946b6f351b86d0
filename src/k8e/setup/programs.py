"""Programs that set-up starts.

None of them can hang set-up or hold its terminal: each has a deadline, no standard input, and a process group of its
own that is killed as a whole. None goes on for nobody: the kernel kills it when we die, but for those whose work must
not be cut off.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

__all__ = ["Finished", "finish"]

TICK_S = 1.0
STOP_S = 120.0
"""For a program that is not cuttable, to finish what it has begun."""
OUTPUT_BYTES = 1 << 20
"""Of a program's output, the end that is kept; a log has all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a program ended; `code` is None when the deadline ended it."""

    code: int | None
    output: str


def finish(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
    tick: Callable[[], None] = lambda: None,
    is_cuttable: bool = True,
) -> Finished:
    """Run a program to its end or its deadline; `tick` is called every second. Raises: OSError if it does not start.

    One that is not cuttable goes on after our own death, and has time to end by itself when the deadline or an
    interrupt ends it.
    """
    # A file, not a pipe: a daemon that inherits a pipe would keep its reader waiting for ever.
    with contextlib.ExitStack() as stack:
        file = log or stack.enter_context(tempfile.TemporaryFile())
        begin = file.seek(0, os.SEEK_END)
        code = _run(argv, file, env, timeout_s, tick, is_cuttable)
        end = file.seek(0, os.SEEK_END)
        file.seek(max(begin, end - OUTPUT_BYTES))
        return Finished(code=code, output=file.read(OUTPUT_BYTES).decode("utf-8", "replace"))


def _run(
    argv: Sequence[str],
    file: IO[bytes],
    env: Mapping[str, str] | None,
    timeout_s: float,
    tick: Callable[[], None],
    is_cuttable: bool,
) -> int | None:
    bound = _bound(argv) if is_cuttable else argv
    process = subprocess.Popen(
        bound, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=env, start_new_session=True
    )
    try:
        return _wait(process, timeout_s, tick)
    finally:
        try:
            if not is_cuttable:
                _ask_to_end(process)
        finally:
            # A program that ended may have left children in its group; one that did not end must.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _bound(argv: Sequence[str]) -> Sequence[str]:
    """The same program, killed by the kernel when we die, where the host has what it takes."""
    binder = shutil.which("setpriv")
    # A program that is not there is Popen's to complain of.
    if binder is None or shutil.which(argv[0]) is None:
        return argv
    return [binder, "--pdeathsig", "KILL", "--", *argv]


def _wait(process: subprocess.Popen[bytes], timeout_s: float, tick: Callable[[], None]) -> int | None:
    end = time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0:
        try:
            return process.wait(min(TICK_S, left))
        except subprocess.TimeoutExpired:
            tick()
    return None


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """What a terminal's Ctrl-C would do to it alone: a package manager then first finishes what it has begun."""
    process.send_signal(signal.SIGINT)  # nothing happens to one that has ended
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
