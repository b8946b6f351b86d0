"""Formatted disks, one template per size: `mkfs` is paid once, a sandbox pays for a sparse copy.

Callers choose sizes freely, so only the templates used last are kept, and that of the usual size always.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import IO

from k8e.model import GIB, MIB
from k8e.substrate.local.host import disk
from k8e.substrate.local.turns import Turns
from k8e.substrate.local.unfinished import UNFINISHED

__all__ = ["KEPT", "Disks", "rounded"]

SANDBOX_TREE = {"upper": 0o755, "work": 0o755, "workspace": 0o755, "tmp": 0o1777}
WORKSPACE_TREE = {"workspace": 0o755}
KEPT = 16
"""Templates of each kind: a few MiB for sandboxes; a workspace's has a journal of up to 64 MiB."""
_GRAIN = MIB


def rounded(size_bytes: int) -> int:
    """The size of the disk that is made: never less than what was asked for."""
    return -(-size_bytes // _GRAIN) * _GRAIN


class Disks:
    """Blocking, safe from several threads."""

    def __init__(self, directory: Path, *, usual_bytes: int = GIB) -> None:
        self._directory = directory
        self._usual = rounded(usual_bytes)
        self._turns = Turns()

    def make_sandbox_disk(self, image: Path, size_bytes: int) -> None:
        """No journal: it dies with the sandbox, and a crash of the machine ends both."""
        with self._template(rounded(size_bytes), "sandbox", SANDBOX_TREE, journal=False) as template:
            disk.copy_sparse(template, image)

    def make_workspace_disk(self, image: Path, size_bytes: int) -> None:
        """With a journal: it outlives crashes."""
        with self._template(rounded(size_bytes), "workspace", WORKSPACE_TREE, journal=True) as template:
            disk.copy_sparse(template, image)

    def _template(self, size_bytes: int, kind: str, tree: dict[str, int], *, journal: bool) -> IO[bytes]:
        """Opened, so that it can be copied also when it is removed meanwhile."""
        path = self._directory / f"{kind}-{size_bytes}.ext4"
        # Others of this size wait for the first; those of other sizes do not.
        with self._turns.at(path.name):
            template = _opened(path)
            if template is None:
                template = self._format(path, size_bytes, tree, journal=journal)
                self._prune(kind, besides=path)
        return template

    def _prune(self, kind: str, *, besides: Path) -> None:
        """Remove those that were not used for the longest time."""
        kept = {besides.name, f"{kind}-{self._usual}.ext4"}
        used_at = {path: _used_at(path) for path in self._directory.glob(f"{kind}-*.ext4") if path.name not in kept}
        oldest_first = sorted(used_at, key=lambda path: used_at[path])
        for path in oldest_first[: max(len(oldest_first) + len(kept) - KEPT, 0)]:
            path.unlink(missing_ok=True)

    def _format(self, path: Path, size_bytes: int, tree: dict[str, int], *, journal: bool) -> IO[bytes]:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=UNFINISHED) as skeleton:
            Path(skeleton).chmod(0o755)
            for name, mode in tree.items():
                (Path(skeleton) / name).mkdir()
                (Path(skeleton) / name).chmod(mode)
            partial = path.with_name(f"{UNFINISHED}{path.name}")
            disk.format_image(partial, size_bytes, skeleton=Path(skeleton), journal=journal)
            # Opened before others see it, and may remove it again.
            template = partial.open("rb")
            partial.rename(path)
            return template


def _opened(path: Path) -> IO[bytes] | None:
    """None where there is none; its time says that it is used."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):
        os.utime(file.fileno())
    return file


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # another thread has just removed it
