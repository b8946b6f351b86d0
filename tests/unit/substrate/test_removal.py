"""What fails while a sandbox is removed keeps back as little as possible, and the next try can finish it."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8e.errors import SandboxFailed
from k8e.model import Runtime, SandboxId
from k8e.substrate.local import record
from k8e.substrate.local.disks import Disks
from k8e.substrate.local.layout import Layout
from k8e.substrate.local.record import Record
from k8e.substrate.local.sandboxes import LocalSandboxes
from k8e.substrate.local.workspaces import Workspaces
from tests.support.port_driver import PortDriver

SANDBOX = SandboxId("sb-1")
RECORD = Record(sandbox=SANDBOX, runtime=Runtime.GVISOR, block=7, memory_bytes=1)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    paths = layout.sandbox(SANDBOX)
    paths.root.mkdir(parents=True)
    record.save(paths, RECORD)
    return layout


class _Broken(PortDriver):
    def remove(self, sandbox: SandboxId) -> None:
        raise FileNotFoundError(2, "dmsetup")


def test_a_driver_that_fails_keeps_nothing_of_the_others_back_and_is_named(layout: Layout, tmp_path: Path) -> None:
    broken, fine = _Broken(tmp_path / "broken"), PortDriver(tmp_path / "fine")
    fine.port(SANDBOX).touch()
    sandboxes = LocalSandboxes(layout, Workspaces(layout, Disks(layout.disks)), (broken, fine))
    assert SANDBOX in sandboxes.found(), "the control"
    with pytest.raises(SandboxFailed, match="dmsetup"):
        sandboxes.remove(SANDBOX)
    assert not fine.port(SANDBOX).exists()
    assert not layout.sandbox(SANDBOX).root.exists()
    assert SANDBOX not in sandboxes.found()


class _Watcher(PortDriver):
    """Knows whether it was asked to remove, which happens when a sandbox's processes have ended."""

    was_asked = False

    def remove(self, sandbox: SandboxId) -> None:
        self.was_asked = True


def test_a_record_that_cannot_be_read_keeps_the_ids_and_nothing_else(layout: Layout, tmp_path: Path) -> None:
    watcher, paths = _Watcher(tmp_path / "ports"), layout.sandbox(SANDBOX)
    workspaces = Workspaces(layout, Disks(layout.disks))
    sandboxes = LocalSandboxes(layout, workspaces, (watcher,))
    use = layout.workspaces / "ws" / "users" / SANDBOX
    use.parent.mkdir(parents=True)
    use.touch()
    paths.record.rename(paths.record.with_name("saved"))
    paths.record.mkdir()  # as with an I/O error: it is there, and cannot be read
    with pytest.raises(SandboxFailed, match="Is a directory"):
        sandboxes.remove(SANDBOX)
    assert watcher.was_asked
    assert not use.exists()
    paths.record.rmdir()
    paths.record.with_name("saved").rename(paths.record)
    assert sandboxes.record(SANDBOX) == RECORD
    sandboxes.remove(SANDBOX)
    assert not paths.root.exists()


def test_what_fails_later_does_not_hide_what_failed_first(layout: Layout, tmp_path: Path) -> None:
    broken = _Broken(tmp_path / "broken")
    sandboxes = LocalSandboxes(layout, _BusyOnce(layout, Disks(layout.disks)), (broken,))
    with pytest.raises(SandboxFailed, match=r"dmsetup.*busy"):
        sandboxes.remove(SANDBOX)


class _BusyOnce(Workspaces):
    is_busy = True

    def release(self, user: SandboxId) -> None:
        if self.is_busy:
            self.is_busy = False
            raise OSError(16, "busy")
        super().release(user)


def test_a_removal_that_stopped_at_a_workspace_still_knows_the_ids_it_has_to_give_back(layout: Layout) -> None:
    sandboxes = LocalSandboxes(layout, _BusyOnce(layout, Disks(layout.disks)), ())
    with pytest.raises(SandboxFailed, match="busy"):
        sandboxes.remove(SANDBOX)
    assert sandboxes.record(SANDBOX) == RECORD
    sandboxes.remove(SANDBOX)
    assert sandboxes.record(SANDBOX) is None
