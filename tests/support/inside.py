"""Commands in bare sandboxes of this test, by the numbers that they have inside.

Interpreters do not count: some wait in every sandbox, under the same numbers.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

__all__ = ["exists", "gone", "outside", "running", "said", "wait_gone"]

PATIENCE_S = 60.0
PAUSE_S = 0.01


def exists(pid: int) -> bool:
    """Whether there is one of this number in any sandbox that this test's processes have made."""
    return bool(_named(pid))


def outside(pid: int) -> int:
    """The host's number of a running one."""
    (found,) = _named(pid)
    return found


async def said(pid_file: Path) -> int:
    """The number of the command that writes it to this file; it may have ended since."""
    async with asyncio.timeout(PATIENCE_S):
        while not (pid_file.exists() and (text := pid_file.read_text().strip())):
            await asyncio.sleep(PAUSE_S)
    return int(text)


async def running(pid_file: Path) -> int:
    """The same of one that is still there."""
    pid = await said(pid_file)
    assert exists(pid)
    return pid


async def gone(pid: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while exists(pid):
            await asyncio.sleep(PAUSE_S)


def wait_gone(pid: int) -> None:
    """The same for tests without a loop."""
    deadline = time.monotonic() + PATIENCE_S
    while exists(pid):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(PAUSE_S)


def _named(pid: int) -> list[int]:
    return [each for each in _descendants(os.getpid()) if _numbers(each)[1:] == [pid] and not _is_interpreter(each)]


def _is_interpreter(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("python")
    except OSError:
        return False


def _numbers(pid: int) -> list[int]:
    """The process's number in each PID namespace that it is in, the host's first."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return []
    return [int(number) for line in lines if line.startswith("NSpid:") for number in line.split()[1:]]


def _descendants(pid: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            mine = [int(child) for child in children.read_text().split()]
        except OSError:
            continue
        found += [each for child in mine for each in (child, *_descendants(child))]
    return found
