"""What the local substrate is told once, by the entry point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from k8e.apt.configuration import AptConfiguration
from k8e.model import GIB
from k8e.substrate.local.images.pulls import PullSettings

__all__ = ["LocalSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    data_dir: Path
    runsc: Path | None
    """None: gVisor is not available."""
    runc: Path | None
    """None: `container` is not available."""
    bundle: Path
    """The staged agent, shown as /.k8e."""
    agent_argv: tuple[str, ...]
    agent_env: Mapping[str, str] = field(default_factory=dict)
    site_files: Mapping[str, str] = field(default_factory=dict)
    """Texts of files in the site-packages of every prebuilt virtual environment, by name."""
    image_roots: tuple[Path, ...] = ()
    """Where images other than `host` may lie, besides <data>/images/library."""
    pulls: PullSettings = field(default_factory=PullSettings)
    files: Mapping[str, Path] = field(default_factory=dict)
    """Files of ours that every sandbox sees, read-only, by their place inside; root inside may read them, so may all."""
    node_tools: Path | None = None
    """An npm prefix with `bin/tsx`, shown to `host` sandboxes as /opt/k8e; None: <data>/tools/node, if it is there."""
    apt: AptConfiguration | None = None
    """With it, packages can be installed in sandboxes of the host image, from these sources."""
    reserve_disk: int | None = None
    """Bytes of the host's disk that sandboxes leave free; None: a twentieth of it, at most 1 GiB."""
    default_disk: int = 5 * GIB
    """The size whose formatted template is always kept."""
