"""Network namespaces as descriptors and as files.

A thread that changes its namespace does so for good and then ends: no other thread, and nothing that runs in it later,
can find itself in the wrong one.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from k8e.substrate.local.host import mount

__all__ = ["hold", "inside", "is_held", "let_go", "make", "open_held"]

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_OWN = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


def make(furnish: Callable[[], object]) -> int:
    """A new namespace, furnished from within, as a descriptor that keeps it alive. Raises: OSError."""

    def work() -> int:
        _check(_libc.unshare(_CLONE_NEWNET), "unshare")
        furnish()
        return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)

    return _apart(work)


def inside(namespace: int, work: Callable[[], T]) -> T:
    """The result of `work`, done inside; what it starts or opens stays there. Raises: OSError, and what `work` raises."""

    def entered() -> T:
        _check(_libc.setns(namespace, _CLONE_NEWNET), "setns")
        return work()

    return _apart(entered)


def hold(namespace: int, path: Path) -> None:
    """Keep it alive by a file, beyond our own end. Raises: OSError."""
    path.touch(mode=0o600)
    mount.bind(Path(f"/proc/self/fd/{namespace}"), path)


def is_held(path: Path) -> bool:
    """Whether a namespace is there, and not just the file that a crash or a reboot has left of it."""
    try:
        return path.stat().st_dev != path.parent.stat().st_dev
    except FileNotFoundError:
        return False


def open_held(path: Path) -> int:
    """Raises: OSError."""
    if not is_held(path):
        raise FileNotFoundError(f"no network namespace at {path}")
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def let_go(path: Path) -> None:
    """Remove the file; the namespace goes with the last process in it. Repeatable."""
    while mount.unmount(path):
        pass
    path.unlink(missing_ok=True)


def _apart(work: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="k8e-netns")
    thread.start()
    thread.join()
    if errors:
        raise errors.pop()
    return results.pop()


def _check(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
