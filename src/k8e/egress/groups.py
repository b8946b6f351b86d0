"""A control group of the daemon's own: what ends or limits the server's shall not end or limit the network."""

from __future__ import annotations

import logging
from pathlib import Path

from k8e.substrate.local.host import cgroup

__all__ = ["leave_servers"]

_log = logging.getLogger(__name__)

_NAME = "k8e-egress"


def leave_servers() -> None:
    """In every hierarchy where we are in some group; where that is not possible we stay."""
    grouped = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()]
    for _, controllers, path in grouped:
        tree = None if path == "/" else _tree(frozenset(controllers.split(",")))
        if tree is None:
            continue
        try:
            (tree / _NAME).mkdir(exist_ok=True)
            (tree / _NAME / "cgroup.procs").write_text("0", encoding="ascii")
        except OSError as error:
            _log.warning("the daemon stays in the server's group", extra={"tree": str(tree), "error": str(error)})


def _tree(controllers: frozenset[str]) -> Path | None:
    """The hierarchy of these controllers; version 2 has none in this listing."""
    for tree in cgroup.hierarchies():
        if (tree.version == 2 and controllers == {""}) or (tree.version == 1 and tree.controllers & controllers):
            return tree.path
    return None
