"""The host's own package sources, in both of apt's formats, and installing from them after one was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8e.setup import apt, packages
from k8e.setup.apt import backports_sources, candidate, codename
from k8e.setup.report import Step

DEB822 = """\
Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ID=debian\nVERSION_CODENAME=bookworm\n", "bookworm"),
        ('VERSION_CODENAME="noble"\n', "noble"),
        ("ID=arch\n", ""),
    ],
)
def test_the_code_name_is_read_from_os_release(text: str, name: str) -> None:
    assert codename(text) == name


@pytest.mark.parametrize(
    ("policy", "version"),
    [
        ("runsc:\n  Installed: (none)\n  Candidate: 0.0~20221219.0-2\n", "0.0~20221219.0-2"),
        ("  Candidate: (none)\n", ""),
        ("", ""),
    ],
)
def test_the_candidate_is_read_from_apt(policy: str, version: str) -> None:
    assert candidate(policy) == version


def test_backports_come_from_the_same_server_with_the_same_key() -> None:
    line = "deb [signed-by=/usr/share/keyrings/archive.gpg] http://mirror.example/debian bookworm-backports main\n"
    assert backports_sources("bookworm", "", DEB822) == line


def test_one_line_sources_keep_their_options() -> None:
    listing = (
        "# deb http://old.example bookworm main\ndeb [arch=amd64] http://mirror.example/debian bookworm main contrib\n"
    )
    assert (
        backports_sources("bookworm", listing, "")
        == "deb [arch=amd64] http://mirror.example/debian bookworm-backports main\n"
    )


def test_a_host_without_the_suite_has_no_backports() -> None:
    assert backports_sources("trixie", "", DEB822).strip() == ""


@pytest.mark.parametrize("left", [(), ("0001",)], ids=["whole", "cut off"])
def test_what_a_killed_installation_left_is_finished_first(
    tmp_path: Path, step: Step, monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...]
) -> None:
    programs, calls, updates = tmp_path / "bin", tmp_path / "calls", tmp_path / "updates"
    for directory in (programs, updates):
        directory.mkdir()
    for name in ("dpkg", "apt-get"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n')
        (programs / name).chmod(0o755)
    for name in left:
        (updates / name).touch()
    monkeypatch.setattr(apt, "INTERRUPTED", updates)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    packages.install(packages.NEEDS[:2], step, env={"PATH": f"{programs}:/usr/bin:/bin"})
    waits = f"-o DPkg::Lock::Timeout={apt.LOCK_S}"
    assert calls.read_text().splitlines() == [
        *["dpkg --configure -a" for _ in left],
        f"apt-get {waits} update -q",
        f"apt-get {waits} install -y -q --no-install-recommends runc nftables",
    ]
