"""What several test processes need and only one of them builds."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

__all__ = ["built_once"]


def built_once(
    factory: pytest.TempPathFactory, name: str, build: Callable[[Path], None], *, is_movable: bool = True
) -> Path:
    """The directory that `build` has filled; whoever comes first builds, the others wait for it.

    A build that fails or is killed leaves nothing that counts, and the next one begins anew. One that is not movable is
    made at its place, because its files hold their own paths.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each worker has a directory of its own below that of the run
    target = base / f"built-{name}"
    with (base / f"built-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = base / f"built-{name}.done"
        if not is_movable and not done.exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            build(target)
            done.touch()
        elif not target.exists():
            unfinished = factory.mktemp(f"unfinished-{name}")
            build(unfinished)
            unfinished.rename(target)
    return target
