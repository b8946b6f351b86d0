"""A record that cannot be read just now is not one that does not exist."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from k8e.errors import SandboxFailed
from k8e.model import Runtime, SandboxId, Template
from k8e.substrate.local import record
from k8e.substrate.local.disks import Disks
from k8e.substrate.local.host.process import identify
from k8e.substrate.local.layout import Layout, SandboxPaths
from k8e.substrate.local.record import Record
from k8e.substrate.local.sandboxes import LocalSandboxes
from k8e.substrate.local.workspaces import Workspaces

SANDBOX = SandboxId("sb-1")
RECORD = Record(sandbox=SANDBOX, runtime=Runtime.CONTAINER, block=7, memory_bytes=1)
TEMPLATE = Template(runtime=Runtime.CONTAINER)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def paths(layout: Layout) -> SandboxPaths:
    paths = layout.sandbox(SANDBOX)
    paths.root.mkdir(parents=True)
    return paths


def _unreadable(path: Path) -> None:
    """As with an I/O error or no descriptor left: it is there, and cannot be read."""
    path.unlink()
    path.mkdir()


def test_what_was_written_is_read(layout: Layout, paths: SandboxPaths) -> None:
    booted = RECORD.booted(identify(os.getpid()))
    record.save(paths, booted)
    record.mark_warm(paths, TEMPLATE)
    assert record.load(paths) == booted
    assert list(record.load_all(layout)) == [booted]
    assert record.load_warm(layout) == {SANDBOX: TEMPLATE}


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"sandbox": "sb-1"}', '{"runtime": "other"}'])
def test_one_that_is_missing_or_was_never_completely_written_is_none(
    layout: Layout, paths: SandboxPaths, content: str | None
) -> None:
    if content is not None:
        paths.record.write_text(content)
        paths.warm.write_text(content)
    assert record.load(paths) is None
    assert list(record.load_all(layout)) == []
    assert record.load_warm(layout) == {}
    assert record.load(layout.sandbox(SandboxId("sb-never"))) is None


def test_one_that_cannot_be_read_now_is_an_error(layout: Layout, paths: SandboxPaths) -> None:
    record.save(paths, RECORD)
    record.mark_warm(paths, TEMPLATE)
    _unreadable(paths.record)
    _unreadable(paths.warm)
    with pytest.raises(IsADirectoryError):
        record.load(paths)
    with pytest.raises(IsADirectoryError):
        list(record.load_all(layout))
    with pytest.raises(IsADirectoryError):
        record.load_warm(layout)


def test_ids_and_files_of_a_sandbox_stay_while_its_record_cannot_be_read(layout: Layout, paths: SandboxPaths) -> None:
    workspaces = Workspaces(layout, Disks(layout.disks))
    record.save(paths, RECORD)
    sandboxes = LocalSandboxes(layout, workspaces, ())
    assert sandboxes.known(SANDBOX) == RECORD, "the control"
    _unreadable(paths.record)
    with pytest.raises(IsADirectoryError):
        LocalSandboxes(layout, workspaces, ())
    with pytest.raises(SandboxFailed, match="look up sandbox"):
        sandboxes.known(SANDBOX)
    with pytest.raises(SandboxFailed, match="destroy"):
        sandboxes.remove(SANDBOX)
    assert paths.record.exists()
