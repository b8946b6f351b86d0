"""Where the network of a data directory lives; all of it is root's alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from k8e.model import SandboxId

__all__ = ["Home"]


@dataclass(frozen=True, slots=True)
class Home:
    root: Path

    @classmethod
    def of(cls, data_dir: Path) -> Home:
        # The mount table knows no symbolic links: whoever looks for mounts by place must name the true one.
        return cls(data_dir.resolve() / "egress")

    @property
    def data_dir(self) -> Path:
        return self.root.parent

    @property
    def router(self) -> Path:
        """The namespace in which all links end."""
        return self.root / "router"

    @property
    def namespaces(self) -> Path:
        """One file per sandbox: its own namespace."""
        return self.root / "ns"

    @property
    def members(self) -> Path:
        """One file per sandbox: its address, policy and names."""
        return self.root / "members"

    @property
    def counter(self) -> Path:
        """The first index that no slot has had."""
        return self.root / "next"

    @property
    def trust(self) -> Path:
        """The operator's own certificate bundle, where there is one."""
        return self.root / "trust.pem"

    @property
    def socket(self) -> Path:
        return self.root / "control.sock"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def log(self) -> Path:
        return self.root / "log"

    def namespace(self, sandbox: SandboxId) -> Path:
        return self.namespaces / sandbox

    def make(self) -> None:
        for path in (self.root, self.namespaces, self.members):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def keep_trust(self, bundle: bytes | None) -> None:
        """Write the operator's bundle down, or forget it; whoever reads it finds the old one or the new one."""
        if bundle is None:
            self.trust.unlink(missing_ok=True)
        elif not self.trust.exists() or self.trust.read_bytes() != bundle:
            partial = self.trust.with_suffix(".partial")
            partial.write_bytes(bundle)
            partial.replace(self.trust)

    def attached(self) -> frozenset[SandboxId]:
        """Every sandbox of which a trace is here; known without asking the daemon."""
        held = (path.name for path in _entries(self.namespaces))
        written = (path.stem for path in _entries(self.members) if path.suffix == ".json")
        return frozenset(SandboxId(name) for name in (*held, *written))


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []
