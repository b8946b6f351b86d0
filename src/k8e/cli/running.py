"""Whether a server of this machine runs, told by its lock and by what it says about itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from k8e.client.errors import Unreachable
from k8e.client.light.places import data_dirs, has_died, own_data_dir
from k8e.locks import is_shown

__all__ = ["ensure_running", "is_running", "ready_pid"]


def ensure_running(
    environ: Mapping[str, str], *, settings: Mapping[str, str] | None = None, only_after_death: bool = False
) -> None:
    """Return when a server runs and is ready, started if none does. Raises: SandboxError.

    It is started with these settings, or without any as the last one there was. With `only_after_death` one that was
    stopped is not started, nor another one beside it: Unreachable says so.
    """
    running = next((directory for directory in data_dirs(environ) if is_running(directory)), None)
    if running is not None and ready_pid(running) is not None:
        return
    from k8e.cli import daemon

    if running is None and only_after_death:
        directory = next((each for each in data_dirs(environ) if has_died(each)), None)
        if directory is None:
            raise Unreachable("no server runs here; start one with `k8e server start`")
        daemon.start(directory, environ, settings)
    elif running is None:
        daemon.start(own_data_dir(environ), environ, settings)
    else:
        daemon.wait_ready(running, None)


def is_running(data_dir: Path) -> bool:
    """Whether a server has the directory."""
    return is_shown(data_dir / "server" / "lock")


def ready_pid(data_dir: Path) -> int | None:
    """The pid of the server that says it is ready there."""
    try:
        return int(json.loads((data_dir / "server" / "server.json").read_text(encoding="utf-8"))["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
