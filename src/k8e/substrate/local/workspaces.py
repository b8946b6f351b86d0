"""Workspaces that are not a sandbox's own: persistent ones on disks of theirs, and a parent's lent to a child.

A persistent workspace is mounted once while anyone uses it; each user has a view shifted to its own ids. Users
are files named after sandboxes, so a crash forgets none.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from k8e.errors import Conflict, SandboxFailed
from k8e.model import SandboxId, WorkspaceId
from k8e.substrate.local.disks import Disks
from k8e.substrate.local.host import disk, loop, mount
from k8e.substrate.local.layout import Layout, WorkspacePaths

__all__ = ["Workspaces", "shared_name"]

_SHARED = "shared:"


def shared_name(parent: SandboxId) -> WorkspaceId:
    """The workspace that is whatever `parent` currently has at /workspace."""
    return WorkspaceId(f"{_SHARED}{parent}")


class Workspaces:
    """Blocking, safe from several threads: one call at a time."""

    def __init__(self, layout: Layout, disks: Disks) -> None:
        self._layout = layout
        self._disks = disks
        self._lock = threading.Lock()

    def create(self, workspace: WorkspaceId, disk_bytes: int) -> None:
        with self._lock:
            self._create(workspace, disk_bytes)

    def _create(self, workspace: WorkspaceId, disk_bytes: int) -> None:
        paths = self._layout.workspace(workspace)
        if paths.image.exists():
            return
        for path in (paths.disk, paths.users):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = paths.image.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        self._disks.make_workspace_disk(partial, disk_bytes)
        partial.replace(paths.image)

    def delete(self, workspace: WorkspaceId) -> None:
        """Raises: Conflict."""
        with self._lock:
            self._delete(workspace)

    def _delete(self, workspace: WorkspaceId) -> None:
        paths = self._layout.workspace(workspace)
        if not paths.root.exists():
            return
        if users := sorted(path.name for path in paths.users.glob("*")):
            raise Conflict(f"workspace {workspace} is in use by {', '.join(users)}")
        _close(paths)
        shutil.rmtree(paths.root)

    def source(self, workspace: WorkspaceId, user: SandboxId) -> Path:
        """A directory with owners as stored, to be shown to `user`. Raises: SandboxFailed."""
        with self._lock:
            if workspace.startswith(_SHARED):
                return self._of_sandbox(SandboxId(workspace.removeprefix(_SHARED)), user)
            return self._open(self._layout.workspace(workspace), user)

    def _of_sandbox(self, parent: SandboxId, user: SandboxId) -> Path:
        for mark in self._layout.workspaces.glob(f"*/users/{parent}"):
            return self._open(WorkspacePaths(mark.parent.parent), user)
        source = self._layout.sandbox(parent).disk / "workspace"
        if not source.is_dir():
            raise SandboxFailed("share workspace", f"{parent} is gone")
        return source

    def _open(self, paths: WorkspacePaths, user: SandboxId) -> Path:
        if not paths.image.exists():
            raise SandboxFailed("open workspace", f"{paths.root.name} does not exist")
        (paths.users / user).touch()
        if not paths.disk.is_mount():
            disk.mount_image(paths.image, paths.disk)
        return paths.disk / "workspace"

    def release(self, user: SandboxId) -> None:
        """`user` is gone: forget it, and close what nobody uses any more."""
        with self._lock:
            for mark in list(self._layout.workspaces.glob(f"*/users/{user}")):
                mark.unlink(missing_ok=True)
                paths = WorkspacePaths(mark.parent.parent)
                if not any(paths.users.iterdir()):
                    _close(paths)


def _close(paths: WorkspacePaths) -> None:
    mount.unmount_under(paths.root)
    loop.release(paths.root)
