"""Where a server of this machine keeps its data, and the doors it says it has."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "SYSTEM_DATA_DIR",
    "LastSettings",
    "data_dirs",
    "doors",
    "has_died",
    "last_settings",
    "own_data_dir",
    "unix_path",
]

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


def has_died(data_dir: Path) -> bool:
    """Whether the server there, if none runs, has ended without being stopped, and is ours to start again."""
    return bool(doors(data_dir)) and last_settings(data_dir) is not None


class LastSettings(NamedTuple):
    """How a server ran, so that the next one runs like it."""

    settings: Mapping[str, str]
    is_autostarted: bool
    """A client started it; any other one may be started again by whoever started it."""


def last_settings(data_dir: Path) -> LastSettings | None:
    """How the last server there ran, or the one that does; None where there was none, or where it is another user's."""
    try:
        with (data_dir / "server" / "settings.json").open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            found = json.load(file)
        texts = {str(name): str(text) for name, text in found["settings"].items()}
        return LastSettings(texts, found["is_autostarted"] is True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
