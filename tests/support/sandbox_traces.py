"""What exists of one sandbox on this host."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from k8e.model import SandboxId
from k8e.substrate.local.host import cgroup, loop, mount
from k8e.substrate.local.layout import Layout
from tests.support.eventually import eventually

__all__ = ["is_gone", "sandbox_traces"]

_LOOP: Final = "loop device"


def sandbox_traces(data_dir: Path, sandbox: SandboxId) -> dict[str, bool]:
    """Which kinds of things exist of it."""
    root, trees = Layout(data_dir).sandbox(sandbox).root, cgroup.hierarchies()
    return {
        "directory": root.exists(),
        "mounts": bool(mount.mounts_under(root)),
        _LOOP: any(Path(file).is_relative_to(root) for file in loop.backing_files().values()),
        "cgroups": any((tree.path / cgroup.ROOT / sandbox).exists() for tree in trees),
        "processes": bool(cgroup.SandboxGroup(trees, sandbox, owner="").processes()),
    }


def is_gone(data_dir: Path, sandbox: SandboxId) -> bool:
    """Whether nothing is left of it now; only its loop device gets some time.

    A sandbox that is started nearby has a copy of all mounts of the host for a moment. A disk that is unmounted
    meanwhile keeps its loop device until that copy is gone.
    """
    left = {kind for kind, is_there in sandbox_traces(data_dir, sandbox).items() if is_there}
    return left <= {_LOOP} and eventually(lambda: not sandbox_traces(data_dir, sandbox)[_LOOP])
