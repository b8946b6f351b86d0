"""Where everything lives under the data directory; every leftover can be found by its place here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from k8e.model import SandboxId, WorkspaceId

__all__ = ["Layout", "SandboxPaths", "WorkspacePaths"]


@dataclass(frozen=True, slots=True)
class SandboxPaths:
    """One sandbox's directory. The sandbox sees only what its mounts show of it."""

    root: Path

    @property
    def record(self) -> Path:
        return self.root / "record.json"

    @property
    def warm(self) -> Path:
        """There while the sandbox is ready and unused; holds the template that it was made of."""
        return self.root / "warm.json"

    @property
    def image(self) -> Path:
        """The disk: everything the sandbox can write."""
        return self.root / "disk.ext4"

    @property
    def disk(self) -> Path:
        """The disk's mount with owners as stored: the source of every idmapped view, seen by no sandbox."""
        return self.root / "disk"

    @property
    def view(self) -> Path:
        """The disk's mount with owners shifted to the sandbox's own ids."""
        return self.root / "view"

    @property
    def rootfs(self) -> Path:
        return self.root / "rootfs"

    @property
    def usr(self) -> Path:
        """The sandbox's own /usr, where its image has one."""
        return self.root / "usr"

    @property
    def layers(self) -> Path:
        """Mount points that the overlay's lower layers need for a moment."""
        return self.root / "layers"

    @property
    def workspace(self) -> Path:
        """Shared mount whose slave is /workspace."""
        return self.root / "ws"

    @property
    def live(self) -> Path:
        """Shared mount whose slave is /.k8e-mnt."""
        return self.root / "mnt"

    @property
    def control(self) -> Path:
        """The tiny tmpfs of the agent's socket."""
        return self.root / "ctl"

    @property
    def inbox(self) -> Path:
        """The half of it that the sandbox sees."""
        return self.control / "in"

    @property
    def private(self) -> Path:
        """The half that it does not."""
        return self.control / "priv"

    @property
    def bundle(self) -> Path:
        return self.root / "oci"

    @property
    def state(self) -> Path:
        """The runtime's own root: private to the sandbox, so its locks and sockets go with the directory."""
        return self.root / "state"

    @property
    def log(self) -> Path:
        return self.root / "runtime.log"

    @property
    def pid_file(self) -> Path:
        return self.root / "pid"


@dataclass(frozen=True, slots=True)
class WorkspacePaths:
    """One workspace that outlives sandboxes."""

    root: Path

    @property
    def image(self) -> Path:
        return self.root / "disk.ext4"

    @property
    def disk(self) -> Path:
        return self.root / "disk"

    @property
    def users(self) -> Path:
        """One empty file per sandbox that uses it."""
        return self.root / "users"


@dataclass(frozen=True, slots=True)
class Layout:
    data_dir: Path

    @property
    def sandboxes(self) -> Path:
        return self.data_dir / "sandboxes"

    @property
    def owners(self) -> Path:
        """Which gateway holds which sandbox."""
        return self.data_dir / "owners"

    @property
    def workspaces(self) -> Path:
        return self.data_dir / "workspaces"

    @property
    def images(self) -> Path:
        return self.data_dir / "images"

    @property
    def disks(self) -> Path:
        """Formatted templates, one per size."""
        return self.data_dir / "disks"

    @property
    def node_tools(self) -> Path:
        """The npm prefix that set-up fills; shown to sandboxes as /opt/k8e."""
        return self.data_dir / "tools" / "node"

    def sandbox(self, sandbox: SandboxId) -> SandboxPaths:
        return SandboxPaths(self.sandboxes / sandbox)

    def workspace(self, workspace: WorkspaceId) -> WorkspacePaths:
        return WorkspacePaths(self.workspaces / workspace)
