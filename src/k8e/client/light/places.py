"""Where a server of this machine keeps its data, and the doors it says it has."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["SYSTEM_DATA_DIR", "data_dirs", "doors", "own_data_dir", "unix_path"]

SYSTEM_DATA_DIR = Path("/var/lib/k8e")


def own_data_dir(environ: Mapping[str, str]) -> Path:
    """Where a server of this user keeps its data."""
    if named := environ.get("K8E_DATA_DIR"):
        return Path(named)
    # Windows has no geteuid and no server of ours.
    if getattr(os, "geteuid", lambda: -1)() == 0:
        return SYSTEM_DATA_DIR
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "k8e"


def data_dirs(environ: Mapping[str, str]) -> list[Path]:
    """Where a server of this machine may be found, own first."""
    own = own_data_dir(environ)
    return [own] if environ.get("K8E_DATA_DIR") else list(dict.fromkeys([own, SYSTEM_DATA_DIR]))


def doors(data_dir: Path) -> Mapping[str, str]:
    """The doors of the server that is ready there; none where none is."""
    try:
        found = json.loads((data_dir / "server" / "server.json").read_text(encoding="utf-8"))["doors"]
        return {str(name): str(address) for name, address in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def unix_path(data_dir: Path) -> str:
    """The socket of the JSON door; empty where there is none."""
    return doors(data_dir).get("connect", "").removeprefix("unix://")
