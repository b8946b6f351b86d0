"""Processes by pid *and* start time, so a recycled number is never mistaken for the one we knew."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from k8e.substrate.local.host.descriptors import readable

__all__ = ["Process", "identify", "is_alive", "kill", "open_pidfd", "set_niceness", "wait_death"]


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    start_ticks: int
    """Field 22 of /proc/<pid>/stat, in clock ticks since boot."""


def _fields(pid: int) -> list[str]:
    # The second field, the name, may hold blanks and parentheses; what follows the last one is regular.
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def identify(pid: int) -> Process:
    """Raises: ProcessLookupError."""
    try:
        return Process(pid, int(_fields(pid)[19]))
    except (FileNotFoundError, IndexError) as error:
        raise ProcessLookupError(pid) from error


def is_alive(process: Process) -> bool:
    """True while exactly this process runs; a zombie does not."""
    try:
        fields = _fields(process.pid)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(fields[19]) == process.start_ticks and fields[0] not in "ZX"


def open_pidfd(process: Process) -> int | None:
    """A descriptor that becomes readable at its death; None if it is already gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if is_alive(process):
        return descriptor
    os.close(descriptor)
    return None


def kill(process: Process) -> None:
    """SIGKILL, or nothing if it is gone."""
    descriptor = open_pidfd(process)
    if descriptor is None:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def set_niceness(process: Process, niceness: int) -> None:
    """Its place among the processes of its own group. Raises: ProcessLookupError when it is gone."""
    os.setpriority(os.PRIO_PROCESS, process.pid, niceness)


async def wait_death(process: Process) -> None:
    """Return once it is dead."""
    descriptor = open_pidfd(process)
    if descriptor is None:
        return
    try:
        await readable(descriptor)
    finally:
        os.close(descriptor)
