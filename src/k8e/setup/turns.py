"""One set-up at a time: whoever comes second waits, shows what the first one does, and goes on where that one dies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from k8e.locks import private
from k8e.setup.report import Reporter, shared_activity

__all__ = ["alone"]

PAUSE_S = 0.2


@contextmanager
def alone(lock: Path, shared: Path, report: Reporter) -> Iterator[None]:
    """Hold the lock; the kernel lets go of it when we die. Raises: OSError when the file cannot be had.

    `shared` is where the holder's `Steps` write what they do.
    """
    with private(lock) as file:
        if not _taken(file):
            _wait(file, shared, report)
        _sign(file)
        yield


def _taken(file: IO[str]) -> bool:
    import fcntl  # not every system on which this module is loaded has it

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(file: IO[str]) -> None:
    """Say who holds it; on a full disk nobody does."""
    with suppress(OSError):
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()


def _wait(file: IO[str], shared: Path, report: Reporter) -> None:
    holder = file.read().strip()
    report.say(f"another k8e{f' (pid {holder})' if holder else ''} is setting up here; waiting for it")
    while not _taken(file):
        if activity := shared_activity(shared):
            report.show(activity)
        time.sleep(PAUSE_S)
    report.clear()
    # It takes this away at its end, unless it was killed.
    if shared.exists():
        report.say("that one died before it was done; going on where it stopped")
