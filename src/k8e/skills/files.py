"""Files of the user's, changed so that nobody ever sees half of one, and that nothing else about them changes.

Links are followed, mode and owner stay, the disk has it before the name does. Two of us at once take turns; an agent
that writes its own config meanwhile is noticed, and its words are kept.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from k8e.errors import Conflict, HostUnsupported

__all__ = ["BACKUP", "Original", "alone", "back_up", "make_directory", "original", "remove", "replace"]

BACKUP = ".k8e-backup"
PATIENCE_S = 30.0
STEP_S = 0.02
NEW_MODE = 0o600
"""Of a config that we make: agents keep keys in theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A file as it was when we looked."""

    path: Path
    """As it is named; it may be a link."""
    data: bytes | None
    """None where there is none."""
    mode: int = NEW_MODE
    owner: tuple[int, int] | None = None

    @property
    def real(self) -> Path:
        return Path(os.path.realpath(self.path))

    @property
    def backup(self) -> Path:
        return self.path.with_name(self.path.name + BACKUP)


def original(path: Path) -> Original:
    """Raises: HostUnsupported where it is no file or cannot be read."""
    with named(path, "read"):
        try:
            # Before it is opened: a pipe would keep us waiting for whoever writes into it.
            facts = path.stat()
            if not stat.S_ISREG(facts.st_mode):
                raise HostUnsupported(f"{path} is no file")
            data = path.read_bytes()
        except FileNotFoundError:
            return Original(path=path, data=None)
    return Original(path=path, data=data, mode=stat.S_IMODE(facts.st_mode), owner=(facts.st_uid, facts.st_gid))


def replace(before: Original, data: bytes) -> None:
    """Give the file new content, if it still is what it was. Raises: Conflict if it is not; HostUnsupported."""
    with named(before.path, "write"):
        # A link's target is replaced, and the link stays a link.
        _written(before.real, data, before)
        _settle(before.real.parent)


def back_up(before: Original) -> Path | None:
    """Keep the old content beside the file; None where there was none."""
    if before.data is None:
        return None
    with named(before.backup, "write"):
        kept = Original(path=before.backup, data=None, mode=before.mode, owner=before.owner)
        _written(before.backup, before.data, kept, is_checked=False)
    return before.backup


def remove(path: Path) -> None:
    with named(path, "remove"):
        path.unlink(missing_ok=True)
        _settle(path.parent)


def make_directory(path: Path, *, mode: int = 0o755) -> list[Path]:
    """The directory with all above it; those that had to be made, deepest first."""
    missing: list[Path] = []
    at = path
    while not at.is_dir():
        missing.append(at)
        at = at.parent
    with named(path, "make"):
        for each in reversed(missing):
            each.mkdir(mode=mode, exist_ok=True)
    return missing


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """One of us at a time; the lock is the directory itself, so nothing is left lying about."""
    try:
        import fcntl
    except ImportError:
        # Windows has no such locks; there the check before the rename must do.
        yield
        return
    with named(directory, "open"):
        descriptor = os.open(directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Conflict(f"{directory} has been locked for {PATIENCE_S:.0f} s by another process") from None
                time.sleep(STEP_S)
            except OSError:
                # Some network file systems lock no directories.
                break
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def named(path: Path, verb: str) -> Iterator[None]:
    """A failure of the system's, with what was tried and on what."""
    try:
        yield
    except OSError as error:
        raise HostUnsupported(f"cannot {verb} {path}: {error.strerror or error}") from error


def _written(path: Path, data: bytes, before: Original, *, is_checked: bool = True) -> None:
    temporary = path.with_name(f".{path.name}.k8e-{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            _likened(file.fileno(), before)
            file.flush()
            os.fsync(file.fileno())
        if is_checked and original(before.path).data != before.data:
            raise Conflict(f"{before.path} was changed by somebody else at the same time; run this again")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _likened(descriptor: int, before: Original) -> None:
    if not hasattr(os, "fchown"):
        return  # Windows has neither owners nor modes of this kind
    if before.owner is not None and before.owner != (os.geteuid(), os.getegid()):
        # Whoever may write another's file need not be allowed to give one away.
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, *before.owner)
    os.fchmod(descriptor, before.mode)


def _settle(directory: Path) -> None:
    """Let the disk have the name, too."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
