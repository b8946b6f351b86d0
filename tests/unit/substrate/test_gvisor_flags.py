"""What protects a sandbox is left out only where a release of runsc has said that it does not know it."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8e.errors import SandboxFailed
from k8e.substrate.local.disks import Disks
from k8e.substrate.local.idmaps import IdMaps
from k8e.substrate.local.layout import Layout, SandboxPaths
from k8e.substrate.local.runtimes.gvisor import Gvisor

_KNOWS = "echo '  -gofer-network-namespace value'; echo '  -in-sandbox-cgroup value'"
_KNOWS_NEITHER = "echo '  -platform value'"


def _runsc(directory: Path, script: str) -> Path:
    path = directory / "runsc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def _optional(driver: Gvisor, directory: Path) -> list[str]:
    argv = driver.argv(SandboxPaths(directory / "sb"), has_network=False)
    return [word for word in argv if word.startswith(("--gofer-network-namespace", "--in-sandbox-cgroup"))]


def _driver(binary: Path, directory: Path) -> Gvisor:
    return Gvisor(binary, Disks(Layout(directory).disks), IdMaps())


def test_flags_that_a_release_knows_are_given_and_those_of_later_ones_are_not(tmp_path: Path) -> None:
    newer = _driver(_runsc(tmp_path, _KNOWS), tmp_path)
    assert _optional(newer, tmp_path) == ["--gofer-network-namespace=new", "--in-sandbox-cgroup=v2"]
    older = _driver(_runsc(tmp_path, _KNOWS_NEITHER), tmp_path)
    assert _optional(older, tmp_path) == []


@pytest.mark.parametrize("trouble", ["kill -9 $$", f"{_KNOWS}; exit 1", "true", "echo 'out of memory' >&2"])
def test_a_release_that_does_not_say_what_it_knows_starts_nothing_and_is_asked_again(
    tmp_path: Path, trouble: str
) -> None:
    driver = _driver(
        _runsc(tmp_path, f"if [ ! -e {tmp_path}/once ]; then touch {tmp_path}/once; {trouble}; exit; fi\n{_KNOWS}"),
        tmp_path,
    )
    with pytest.raises(SandboxFailed, match="ask runsc for its flags"):
        _optional(driver, tmp_path)
    assert _optional(driver, tmp_path) == ["--gofer-network-namespace=new", "--in-sandbox-cgroup=v2"]
