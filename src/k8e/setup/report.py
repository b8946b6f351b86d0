"""How set-up talks while it works: short lines, and a heartbeat while something long runs.

No program started here can hang set-up or hold its terminal: each has a deadline, no standard input, a process
group of its own that is killed as a whole, and its output goes to a log that is shown when it fails.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from k8e.errors import HostUnsupported
from k8e.visible import LINES, terminal_safe

__all__ = ["Finished", "Reporter", "Silent", "Stderr", "finish", "work"]

HEARTBEAT_S = 5.0
LOG_LINES = 15


class Reporter(Protocol):
    def say(self, text: str) -> None:
        """One line for a person who is waiting."""
        ...


class Stderr:
    """Lines on standard error, so that standard output stays a program's."""

    def say(self, text: str) -> None:
        sys.stderr.write(f"k8e: {terminal_safe(text, keep=LINES)}\n")
        sys.stderr.flush()


class Silent:
    """For callers that only want the result."""

    def say(self, text: str) -> None:
        """Say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a program ended; `code` is None when the deadline killed it."""

    code: int | None
    output: str


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait(process: subprocess.Popen[bytes], label: str, report: Reporter, timeout_s: float) -> int | None:
    start = time.monotonic()
    while (spent := time.monotonic() - start) < timeout_s:
        try:
            return process.wait(min(HEARTBEAT_S, timeout_s - spent))
        except subprocess.TimeoutExpired:
            report.say(f"  {label} … {time.monotonic() - start:.0f} s")
    return None


def _run(
    argv: Sequence[str], log: IO[bytes], label: str, report: Reporter, timeout_s: float, env: Mapping[str, str] | None
) -> int | None:
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True
    )
    try:
        return _wait(process, label, report, timeout_s)
    finally:
        # A program that ended may have left children in its group; one that did not end must.
        _kill(process)


def finish(
    argv: Sequence[str],
    *,
    timeout_s: float,
    label: str = "",
    report: Reporter | None = None,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Run a program to its end or its deadline. Raises: OSError when it cannot be started."""
    # A file, not a pipe: a daemon that inherits a pipe would keep its reader waiting for ever.
    with tempfile.TemporaryFile() as log:
        code = _run(argv, log, label or argv[0], report or Silent(), timeout_s, env)
        log.seek(0)
        return Finished(code=code, output=log.read().decode("utf-8", "replace"))


def work(
    argv: Sequence[str], *, label: str, report: Reporter, timeout_s: float, env: Mapping[str, str] | None = None
) -> str:
    """Run a program that must succeed and return its output. Raises: HostUnsupported with the last lines."""
    try:
        ended = finish(argv, timeout_s=timeout_s, label=label, report=report, env=env)
    except OSError as error:
        raise HostUnsupported(f"{label}: cannot start {argv[0]}: {error.strerror}") from error
    if ended.code == 0:
        return ended.output
    tail = "\n".join(ended.output.splitlines()[-LOG_LINES:])
    how = f"no end after {timeout_s:.0f} s" if ended.code is None else f"exit code {ended.code}"
    raise HostUnsupported(f"{label}: {' '.join(argv)}: {how}\n{tail}")
