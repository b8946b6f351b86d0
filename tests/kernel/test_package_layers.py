"""The layer over the host's /usr, under the kernel's own overlay file system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.substrate.local.host import mount
from k8e.substrate.local.images import packages


@pytest.fixture
def usr(tmp_path: Path) -> Path:
    """What stands for the host's: some of it is not for everybody."""
    usr = tmp_path / "usr"
    for name, mode in {
        "bin/open": 0o755,
        "bin/closed": 0o700,
        "share/secrets/key": 0o644,
        "share/listed/a": 0o644,
        "lib/group": 0o640,
    }.items():
        (usr / name).parent.mkdir(parents=True, exist_ok=True)
        (usr / name).write_text(name)
        (usr / name).chmod(mode)
    (usr / "share/secrets").chmod(0o700)
    (usr / "bin/link").symlink_to("closed")
    return usr


@pytest.fixture
def shown(usr: Path, tmp_path: Path) -> Iterator[Path]:
    """What a sandbox sees."""
    layer, upper, work, target = (tmp_path / name for name in ("layer", "upper", "work", "shown"))
    for path in (layer, upper, work, target):
        path.mkdir()
    packages.fill_usr(layer, packages.closed(usr), usr)
    mount.tmpfs(upper.parent / "work", size_bytes=1 << 20, inodes=100)
    for name in ("upper", "work"):
        (work / name).mkdir()
    mount.overlay(target, lower=(layer, usr), upper=work / "upper", work=work / "work")
    yield target
    mount.unmount_under(tmp_path)


def _files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}


def test_what_others_on_the_host_may_not_read_is_not_there(usr: Path, shown: Path) -> None:
    assert {"bin/closed", "share/secrets/key", "lib/group"} <= _files(usr), "the control"
    assert _files(shown) == {"bin/open", "bin/link", "share/listed/a", "sbin/policy-rc.d"}


def test_the_host_s_files_stay_as_they_are(usr: Path, shown: Path) -> None:
    (shown / "bin/open").write_text("changed")
    (shown / "share/listed/a").unlink()
    (shown / "share/secrets").mkdir()
    assert (usr / "bin/open").read_text() == "bin/open"
    assert (usr / "share/listed/a").exists()
    assert list((shown / "share/secrets").iterdir()) == []
    assert (shown / "bin").stat().st_mode == (usr / "bin").stat().st_mode


def test_a_host_that_starts_no_services_keeps_its_own_way(usr: Path, tmp_path: Path) -> None:
    (usr / "sbin").mkdir()
    (usr / "sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (tmp_path / "own").mkdir()
    packages.fill_usr(tmp_path / "own", [], usr)
    assert list((tmp_path / "own").iterdir()) == []
