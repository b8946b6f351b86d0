"""Disks without sandboxes on a host's disk that is too small for all of them: what one look lets them take."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.model import GIB, MIB
from k8e.substrate.local.disk_space import HostDiskSpace
from k8e.substrate.local.host.disk import format_image, mount_image
from k8e.substrate.local.layout import Layout
from tests.support.eventually import eventually
from tests.support.small_disks import leave, small_disk

RESERVE = 100 * MIB


@pytest.fixture
def place(data_dir: Path) -> Iterator[Path]:
    with small_disk(data_dir, 900 * MIB) as place:
        Layout(place).sandboxes.mkdir()
        Layout(place).workspaces.mkdir()
        yield place


@contextlib.contextmanager
def _disks(place: Path, number: int) -> Iterator[list[Path]]:
    """Mounted where those of sandboxes are, each larger than the host's."""
    with contextlib.ExitStack() as mounted:
        yield [mounted.enter_context(_disk(Layout(place).sandboxes / f"sb-{each}")) for each in range(number)]


@contextlib.contextmanager
def _disk(root: Path) -> Iterator[Path]:
    image, disk, skeleton = root / "disk.ext4", root / "disk", root / "skeleton"
    disk.mkdir(parents=True)
    skeleton.mkdir()
    format_image(image, GIB, skeleton=skeleton, journal=False)
    mount_image(image, disk)
    try:
        yield disk
    finally:
        assert eventually(lambda: subprocess.run(["umount", str(disk)], check=False).returncode == 0)


def _take(disk: Path) -> int:
    """How much more can be had of it now."""
    with (disk / "taken").open("ab") as file:
        before = os.fstat(file.fileno()).st_size
        with contextlib.suppress(OSError):
            for end in itertools.count(before, MIB):
                os.posix_fallocate(file.fileno(), end, MIB)
        return os.fstat(file.fileno()).st_size - before


def _backed(disk: Path) -> int:
    return disk.with_name("disk.ext4").stat().st_blocks * 512


def test_between_two_looks_all_together_take_no_more_than_there_is(place: Path) -> None:
    with _disks(place, 6) as disks:
        leave(place, RESERVE + 120 * MIB)
        HostDiskSpace(Layout(place), RESERVE).set_bounds()
        taken = [_take(disk) for disk in disks]
    assert min(taken) > 15 * MIB
    assert sum(taken) <= 120 * MIB + RESERVE // 2


def test_a_disk_alone_may_take_all_that_is_left_at_once(place: Path) -> None:
    with _disks(place, 1) as disks:
        leave(place, RESERVE + 120 * MIB)
        HostDiskSpace(Layout(place), RESERVE).set_bounds()
        assert 110 * MIB < _take(disks[0]) <= 120 * MIB


def test_who_takes_more_is_given_more_at_the_next_look(place: Path) -> None:
    with _disks(place, 6) as disks:
        leave(place, RESERVE + 120 * MIB)
        room, taken = HostDiskSpace(Layout(place), RESERVE), 0
        room.set_bounds()
        while more := _take(disks[0]):
            taken += more
            room.set_bounds()
        assert 110 * MIB < taken <= 120 * MIB
        assert max(_take(disk) for disk in disks[1:]) < 20 * MIB


def test_what_was_freed_comes_back_in_parts_with_a_look_before_each(place: Path) -> None:
    with _disks(place, 1) as disks:
        before = _backed(disks[0])
        with (disks[0] / "big").open("wb") as file:
            file.write(b"x" * (300 * MIB))
            os.fsync(file.fileno())
        full = _backed(disks[0])
        assert full > before + 290 * MIB
        (disks[0] / "big").unlink()
        # However slow it is: by this clock every part takes longer than a look may be late.
        room, seen = HostDiskSpace(Layout(place), RESERVE, clock=map(float, itertools.count()).__next__), [full]
        while seen[-1] > before + 20 * MIB and len(seen) < 20:
            room.set_bounds()
            seen.append(_backed(disks[0]))
        given_back = [earlier - later for earlier, later in itertools.pairwise(seen)]
        assert seen[-1] <= before + 20 * MIB
        assert max(given_back) <= 128 * MIB
