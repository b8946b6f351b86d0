"""Layers written by strangers: whiteouts hide, links and dots never lead out."""

from __future__ import annotations

import errno
import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from k8e.errors import InvalidSpec
from k8e.substrate.local.images import layer
from tests.support.skips import needs_root

pytestmark = needs_root("files of an image belong to its own users")


def _archive(*members: tuple[str, bytes | str | None, bytes]) -> tarfile.TarFile:
    """Members as (name, content or link target or None for a directory, tar type)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.mode = 0o755
            if isinstance(content, str):
                info.linkname = content
            data = content if isinstance(content, bytes) else b""
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    buffer.seek(0)
    return tarfile.open(fileobj=buffer)


def _file(name: str, content: bytes = b"x") -> tuple[str, bytes, bytes]:
    return name, content, tarfile.REGTYPE


def _link(name: str, target: str) -> tuple[str, str, bytes]:
    return name, target, tarfile.SYMTYPE


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.mark.parametrize("name", ["../escaped", "/../../escaped", "a/../../../escaped", "./../escaped"])
def test_dots_stop_at_the_root(root: Path, name: str) -> None:
    layer.apply(_archive(_file(name)), root, layer.Room())
    assert not (root.parent / "escaped").exists()
    assert (root / "escaped").read_bytes() == b"x"


@pytest.mark.parametrize("target", ["/", "/outside", "../../outside", ".."])
def test_a_link_to_a_directory_outside_leads_inside(root: Path, target: str) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    layer.apply(_archive(_link("door", target), _file("door/planted")), root, layer.Room())
    assert not any(outside.iterdir())
    assert not (root.parent / "planted").exists()
    assert list(root.rglob("planted"))


def test_a_file_over_a_link_replaces_the_link_not_its_target(root: Path) -> None:
    victim = root.parent / "victim"
    victim.write_bytes(b"safe")
    layer.apply(_archive(_link("name", str(victim)), _file("name", b"attack")), root, layer.Room())
    assert victim.read_bytes() == b"safe"
    assert (root / "name").read_bytes() == b"attack"


def test_a_hard_link_reaches_only_files_of_the_image(root: Path) -> None:
    (root.parent / "secret").write_bytes(b"s")
    with pytest.raises(InvalidSpec):
        layer.apply(_archive(("copy", "../secret", tarfile.LNKTYPE)), root, layer.Room())
    layer.apply(_archive(_file("mine"), ("copy", "mine", tarfile.LNKTYPE)), root, layer.Room())
    assert (root / "copy").stat().st_ino == (root / "mine").stat().st_ino


def test_a_merged_usr_link_of_a_lower_layer_is_followed(root: Path) -> None:
    layer.apply(_archive(("usr/bin", None, tarfile.DIRTYPE), _link("bin", "usr/bin")), root, layer.Room())
    layer.apply(_archive(_file("bin/tool")), root, layer.Room())
    assert (root / "bin").is_symlink()
    assert (root / "usr/bin/tool").read_bytes() == b"x"


def test_a_whiteout_removes_what_a_lower_layer_put_there(root: Path) -> None:
    layer.apply(_archive(_file("etc/old"), _file("etc/kept"), _file("gone/deep/file")), root, layer.Room())
    layer.apply(_archive(_file("etc/.wh.old", b""), _file(".wh.gone", b"")), root, layer.Room())
    assert _names(root / "etc") == ["kept"]
    assert not (root / "gone").exists()


def test_an_opaque_directory_keeps_only_its_own_layers_files(root: Path) -> None:
    layer.apply(_archive(_file("d/old")), root, layer.Room())
    layer.apply(_archive(_file("d/new"), _file("d/.wh..wh..opq", b"")), root, layer.Room())
    assert _names(root / "d") == ["new"]


def test_device_nodes_are_left_out(root: Path) -> None:
    layer.apply(_archive(("dev/sda", None, tarfile.BLKTYPE), _file("dev/plain")), root, layer.Room())
    assert _names(root / "dev") == ["plain"]


def test_a_loop_of_links_is_refused(root: Path) -> None:
    with pytest.raises(InvalidSpec, match="too many links"):
        layer.apply(_archive(_link("a", "b"), _link("b", "a"), _file("a/file")), root, layer.Room())


def test_an_image_has_only_so_much_room(root: Path) -> None:
    layer.apply(_archive(_file("fits", b"x" * 1000)), root, layer.Room(20_000))
    with pytest.raises(InvalidSpec, match="--max-image"):
        layer.apply(_archive(_file("large", b"x" * 20_000)), root, layer.Room(20_000))
    assert not (root / "large").exists()
    # Names alone take room, too: the host's disk has only so many files.
    with pytest.raises(InvalidSpec, match="--max-image"):
        layer.apply(_archive(*(_file(f"empty-{number}", b"") for number in range(10))), root, layer.Room(20_000))


def test_a_file_with_holes_counts_as_what_it_becomes(root: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("holes")
        info.size = 512
        info.pax_headers = {
            "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(1 << 40), "GNU.sparse.numblocks": "1",
            "GNU.sparse.map": "0,512", "GNU.sparse.name": "holes",
        }  # fmt: skip
        archive.addfile(info, io.BytesIO(b"x" * 512))
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as archive, pytest.raises(InvalidSpec, match="--max-image"):
        layer.apply(archive, root, layer.Room(1 << 20))


@pytest.mark.parametrize("is_by_links", [False, True], ids=["at once", "by links"])
def test_directories_go_only_so_deep(root: Path, is_by_links: bool) -> None:
    members: list[Any] = [_file("/".join(["d"] * 200 + ["control"]))]
    layer.apply(_archive(*members), root, layer.Room())
    if is_by_links:
        members = [_link("l", "/".join(["d"] * 200)), _file("l/" + "/".join(["e"] * 100 + ["file"]))]
    else:
        members = [_file("/".join(["d"] * 1500 + ["file"]))]
    with pytest.raises(InvalidSpec, match="in one another"):
        layer.apply(_archive(*members), root, layer.Room())
    shutil.rmtree(root)


@pytest.mark.parametrize("name", [".wh...", ".wh..", ".wh.", "d/.wh..."])
def test_a_whiteout_hides_nothing_outside_of_its_directory(root: Path, name: str) -> None:
    beside = root.parent / "beside"
    beside.write_text("somebody else's")
    layer.apply(_archive(_file("d/file"), _file("d/.wh.file", b"")), root, layer.Room())
    assert _names(root / "d") == [], "the control"
    with pytest.raises(InvalidSpec, match="hides nothing"):
        layer.apply(_archive(_file("d/file"), _file(name, b"")), root, layer.Room())
    assert (beside.read_text(), root.is_dir(), (root / "d/file").exists()) == ("somebody else's", True, True)


@pytest.mark.parametrize("field", ["size", "GNU.sparse.size", "GNU.sparse.realsize"])
def test_a_negative_size_gives_no_room(root: Path, field: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("less")
        info.size = 512
        info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.name": "less", field: str(-(10**15))}
        archive.addfile(info, io.BytesIO(b"x" * 512))
    buffer.seek(0)
    room = layer.Room(20_000)
    with pytest.raises((InvalidSpec, tarfile.TarError)), tarfile.open(fileobj=buffer) as archive:
        layer.apply(archive, root, room)
    assert room.taken >= 0


def test_directories_that_are_only_implied_take_room(root: Path) -> None:
    layer.apply(_archive(_file("a/file")), root, layer.Room(100_000))
    with pytest.raises(InvalidSpec, match="--max-image"):
        layer.apply(_archive(_file("/".join(["b"] * 100 + ["file"]))), root, layer.Room(100_000))


def test_the_disk_is_looked_at_while_an_image_is_unpacked(root: Path) -> None:
    def full(size: int) -> None:
        raise OSError(errno.ENOSPC, f"no room for {size}")

    layer.apply(_archive(_file("small")), root, layer.Room(1 << 30, full))
    with pytest.raises(OSError, match="no room for"):
        layer.apply(_archive(_file("large", bytes(17 << 20))), root, layer.Room(1 << 30, full))
    assert not (root / "large").exists()


@pytest.mark.parametrize("time", [float("nan"), -1.0, 1e18])
def test_an_odd_time_is_none(root: Path, time: float) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("file")
        info.pax_headers = {"mtime": str(time)}
        archive.addfile(info)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as archive:
        layer.apply(archive, root, layer.Room())
    assert (root / "file").stat().st_mtime == 0
