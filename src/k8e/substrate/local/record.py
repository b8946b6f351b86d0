"""What must be known about a sandbox after a crash, one small JSON file each, replaced atomically.

That a record is not there, or was never completely written, is known for certain. Any other error of reading it (no
descriptor left, an I/O error) says nothing of the sandbox, and is the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from k8e.model import Runtime, SandboxId, Template, WorkspaceId
from k8e.substrate.local.host.process import Process
from k8e.substrate.local.layout import Layout, SandboxPaths

__all__ = ["Record", "load", "load_all", "load_warm", "mark_used", "mark_warm", "save"]

_NO_RECORD: Final = (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    sandbox: SandboxId
    runtime: Runtime
    block: int
    """Which block of 65536 host ids is its own."""
    memory_bytes: int
    pid: int = 0
    start_ticks: int = 0
    workspace: WorkspaceId | None = None
    """The workspace it was given at claim; None means its own."""
    image: str = ""
    """The image that it stands on, by the name of its directory."""

    @property
    def init(self) -> Process | None:
        return Process(self.pid, self.start_ticks) if self.pid else None

    def booted(self, init: Process) -> Record:
        return replace(self, pid=init.pid, start_ticks=init.start_ticks)

    def using(self, workspace: WorkspaceId) -> Record:
        return replace(self, workspace=workspace)


def save(paths: SandboxPaths, record: Record) -> None:
    """Durable against our crash, not against the machine's: no sandbox survives that either."""
    _replace(paths.record, json.dumps(asdict(record)))


def load(paths: SandboxPaths) -> Record | None:
    """None if there is none, or it was never completely written. Raises: OSError when that cannot be seen now."""
    try:
        fields = json.loads(paths.record.read_text(encoding="ascii"))
        return Record(**{**fields, "runtime": Runtime(fields["runtime"])})
    except _NO_RECORD:
        return None


def mark_warm(paths: SandboxPaths, template: Template) -> None:
    """It is ready and unused."""
    _replace(paths.warm, json.dumps(asdict(template)))


def mark_used(paths: SandboxPaths) -> None:
    """From now on it is not, also after a crash; one system call."""
    paths.warm.unlink(missing_ok=True)


def load_warm(layout: Layout) -> dict[SandboxId, Template]:
    """Those with a mark that they are unused. Raises: OSError when one cannot be read now."""
    found = {}
    for path in _directories(layout.sandboxes):
        try:
            fields = json.loads(SandboxPaths(path).warm.read_text(encoding="ascii"))
            found[SandboxId(path.name)] = Template(**{**fields, "runtime": Runtime(fields["runtime"])})
        except _NO_RECORD:
            continue
    return found


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="ascii")
    partial.replace(path)


def load_all(layout: Layout) -> Iterator[Record]:
    """Raises: OSError when one cannot be read now: what it names must not be taken for free."""
    for path in _directories(layout.sandboxes):
        record = load(SandboxPaths(path))
        if record is not None:
            yield record


def _directories(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
