"""tsx, which runs TypeScript on the host's Node: installed once below the data directory.

`--lang ts` is an extra: without Node or npm nothing here fails, and a sandbox that lacks it says how to add it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from k8e.setup.packages import find
from k8e.setup.report import Step

__all__ = ["PINNED", "install", "installed"]

PINNED = "tsx@^4.19"
INSTALL_TIMEOUT_S = 600.0
USUAL_S = 15.0


def installed(tools: Path) -> Path | None:
    """The directory that holds `bin/tsx`, if it is there; it appears only when it is complete."""
    home = tools / "node"
    return home if (home / "bin" / "tsx").is_file() else None


def install(tools: Path, step: Step, *, env: Mapping[str, str]) -> Path | None:
    """Install tsx below `tools`; None where the host has no Node. Raises: HostUnsupported."""
    if home := installed(tools):
        step.end("tsx")
        return home
    npm = find("npm")
    if npm is None or find("node") is None:
        step.end("not available, because this host has no Node; k8e goes on without it")
        return None
    step.doing("installing tsx", usual_s=USUAL_S)
    unfinished = tools / "node.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    # A lock file would hold the registry's address, and nothing here reads one.
    options = ["--no-audit", "--no-fund", "--no-update-notifier", "--no-package-lock", "--omit=dev"]
    step.run([npm, "install", "--prefix", str(unfinished), *options, PINNED], timeout_s=INSTALL_TIMEOUT_S, env=env)
    (unfinished / "bin").mkdir()
    (unfinished / "bin" / "tsx").symlink_to("../node_modules/.bin/tsx")
    # Sandboxes see this directory, and their root is nobody outside.
    step.run(["chmod", "-R", "a+rX", str(unfinished)], timeout_s=INSTALL_TIMEOUT_S)
    shutil.rmtree(tools / "node", ignore_errors=True)
    home = unfinished.rename(tools / "node")
    step.end("tsx")
    return home
