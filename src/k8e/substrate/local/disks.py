"""Formatted disks, one template per size: `mkfs` is paid once, a sandbox pays for a sparse copy."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from k8e.substrate.local.host import disk
from k8e.substrate.local.unfinished import UNFINISHED

__all__ = ["Disks"]

SANDBOX_TREE = {"upper": 0o755, "work": 0o755, "workspace": 0o755, "tmp": 0o1777}
WORKSPACE_TREE = {"workspace": 0o755}


class Disks:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._making = threading.Lock()

    def make_sandbox_disk(self, image: Path, size_bytes: int) -> None:
        """No journal: it dies with the sandbox, and a crash of the machine ends both."""
        disk.copy_sparse(self._template(size_bytes, "sandbox", SANDBOX_TREE, journal=False), image)

    def make_workspace_disk(self, image: Path, size_bytes: int) -> None:
        """With a journal: it outlives crashes."""
        disk.copy_sparse(self._template(size_bytes, "workspace", WORKSPACE_TREE, journal=True), image)

    def _template(self, size_bytes: int, kind: str, tree: dict[str, int], *, journal: bool) -> Path:
        path = self._directory / f"{kind}-{size_bytes}.ext4"
        with self._making:
            if not path.exists():
                self._format(path, size_bytes, tree, journal=journal)
        return path

    def _format(self, path: Path, size_bytes: int, tree: dict[str, int], *, journal: bool) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=UNFINISHED) as skeleton:
            Path(skeleton).chmod(0o755)
            for name, mode in tree.items():
                (Path(skeleton) / name).mkdir()
                (Path(skeleton) / name).chmod(mode)
            partial = path.with_name(f"{UNFINISHED}{path.name}")
            disk.format_image(partial, size_bytes, skeleton=Path(skeleton), journal=journal)
            partial.rename(path)
