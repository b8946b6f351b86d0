"""Reading the host's own package sources, in both of apt's formats."""

from __future__ import annotations

import pytest

from k8e.setup.apt import backports_sources, candidate, codename

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
