"""What an image's own Python has made is measured before it is copied out of its sandbox."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from k8e.errors import SandboxFailed
from k8e.substrate.local import venv
from k8e.substrate.local.host.process import identify
from tests.support.descriptors import descriptors, opened_and_kept


def hole(directory: Path) -> None:
    with (directory / "hole").open("wb") as file:
        file.truncate(1 << 40)


def links(directory: Path) -> None:
    (directory / "file").write_bytes(bytes(1 << 20))
    for number in range(300):
        os.link(directory / "file", directory / f"link-{number}")


def depth(directory: Path) -> None:
    for _ in range(70):
        directory /= "d"
        directory.mkdir()


@pytest.mark.parametrize("fill", [hole, links, depth])
def test_an_environment_that_would_grow_when_copied_is_refused(tmp_path: Path, fill: object) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to("/usr/bin/python3")
    (tmp_path / "outside").symlink_to("/")
    venv.check_size(tmp_path)
    assert callable(fill)
    fill(tmp_path)
    with pytest.raises(SandboxFailed, match="more than"):
        venv.check_size(tmp_path)


def test_waiting_for_a_build_keeps_no_descriptor() -> None:
    before = descriptors()
    with subprocess.Popen(["sleep", "0.1"]) as build:
        venv.wait(identify(build.pid))
    assert opened_and_kept(before) == []
