"""A full disk is told by name, and nothing else is taken for one."""

from __future__ import annotations

import errno
from pathlib import Path

from k8e import full_disk
from k8e.errors import DiskFull, SandboxFailed


def _failed_for(number: int) -> SandboxFailed:
    failed = SandboxFailed("make disk")
    failed.__cause__ = OSError(number, "no")
    return failed


def test_the_cause_is_found_below_other_errors(tmp_path: Path) -> None:
    told = full_disk.explained(ExceptionGroup("several", [_failed_for(errno.EDQUOT)]), tmp_path)
    assert isinstance(told, DiskFull)
    assert f"free space on the disk of {tmp_path}" in str(told)


def test_other_errors_are_no_full_disk(tmp_path: Path) -> None:
    assert full_disk.explained(_failed_for(errno.EIO), tmp_path) is None


def test_no_space_for_something_else_is_no_full_disk(tmp_path: Path) -> None:
    """The kernel also says so where there are too many watches or namespaces."""
    assert not full_disk.is_full(tmp_path)
    assert full_disk.explained(_failed_for(errno.ENOSPC), tmp_path) is None
    assert full_disk.is_full(Path("/proc")) is False


def test_ballast_is_kept_while_there_is_room(tmp_path: Path) -> None:
    assert not full_disk.make_room(tmp_path / "ballast")
    assert (tmp_path / "ballast").stat().st_blocks * 512 >= 8 * 2**20
