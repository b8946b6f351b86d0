"""Templates of disks: one per size, a bounded number of them, and each disk whole."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from k8e.model import MIB
from k8e.substrate.local.disks import KEPT, Disks

SMALLEST = 8 * MIB
_AT_ONCE = 4


def _templates(directory: Path, kind: str) -> set[int]:
    return {int(path.stem.rpartition("-")[2]) for path in directory.glob(f"{kind}-*.ext4")}


def _make(disks: Disks, kind: str) -> Callable[[Path, int], None]:
    return {"sandbox": disks.make_sandbox_disk, "workspace": disks.make_workspace_disk}[kind]


@pytest.mark.parametrize("kind", ["sandbox", "workspace"])
def test_templates_of_sizes_that_nobody_asks_for_any_more_are_removed(tmp_path: Path, kind: str) -> None:
    disks = Disks(tmp_path / "disks", usual_bytes=SMALLEST)
    sizes = [SMALLEST + number * MIB for number in range(KEPT * 2)]
    for number, size in enumerate(sizes):
        for again in (size, sizes[1]) if number else (size,):
            image = tmp_path / f"{number}-{again}"
            _make(disks, kind)(image, again)
            image.unlink()
    kept = _templates(tmp_path / "disks", kind)
    assert len(kept) == KEPT
    assert SMALLEST in kept, "the usual size"
    assert {sizes[1], *sizes[-KEPT + 2 :]} <= kept, "those used last"


def test_a_disk_is_never_smaller_than_asked_for(tmp_path: Path) -> None:
    disks = Disks(tmp_path / "disks")
    for number, asked in enumerate((SMALLEST, SMALLEST + 1, SMALLEST + MIB - 1)):
        disks.make_sandbox_disk(tmp_path / str(number), asked)
        assert asked <= (tmp_path / str(number)).stat().st_size < asked + MIB
    assert len(_templates(tmp_path / "disks", "sandbox")) == 2


def test_disks_are_whole_while_templates_come_and_go(tmp_path: Path) -> None:
    disks = Disks(tmp_path / "disks", usual_bytes=SMALLEST)

    def make_many(first: int) -> None:
        for number in range(KEPT + 4):
            image = tmp_path / f"{first}-{number}"
            disks.make_sandbox_disk(image, SMALLEST + (first + number) % (KEPT + 8) * MIB)
            subprocess.run(["e2fsck", "-fn", str(image)], check=True, capture_output=True)
            image.unlink()

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(make_many, range(_AT_ONCE)))
    assert len(_templates(tmp_path / "disks", "sandbox")) <= KEPT + _AT_ONCE
