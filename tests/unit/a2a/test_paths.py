"""Names of files: confined on their way in, with the right media type on their way out."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.a2a.paths import WORKSPACE, is_of_interest, media_type, workspace_path

awkward = st.text(st.sampled_from(list("a./\\ \0\n~-é")), max_size=20)


@given(st.text() | awkward)
def test_no_name_leads_out_of_the_workspace(name: str) -> None:
    path = workspace_path(name)
    assert path is None or (posixpath.normpath(path) == path and path.startswith(WORKSPACE))


@pytest.mark.parametrize("name", ["a", "a b.csv", "deep/down/é.txt", "./a", "a//b", "~", "-rf", "...", "/workspace/a"])
def test_a_plain_name_is_taken(name: str) -> None:
    assert workspace_path(name) == posixpath.normpath(posixpath.join(WORKSPACE, name))


def test_a_name_is_no_longer_than_the_kernel_takes() -> None:
    assert workspace_path("a" * 255)
    assert workspace_path("a" * 256) is None
    assert workspace_path("é" * 128) is None
    assert workspace_path("a/" * 400 + "b")
    assert workspace_path("a/" * 600 + "b") is None


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/workspace/plot.png", "image/png"),
        ("/workspace/a.JPG", "image/jpeg"),
        ("/workspace/a.svg", "image/svg+xml"),
        ("/workspace/a.csv", "text/csv"),
        ("/workspace/a.json", "application/json"),
        ("/workspace/a.tar.gz", "application/octet-stream"),
        ("/workspace/noext", "application/octet-stream"),
    ],
)
def test_a_media_type_is_that_of_the_name(path: str, wanted: str) -> None:
    assert media_type(path) == wanted


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("a.png", True), ("out/a", True), (".cache/a", False), ("x/__pycache__/a.pyc", False), ("node_modules/a", False)],
)
def test_leftovers_of_tools_are_not_sent_along(path: str, wanted: bool) -> None:
    assert is_of_interest(WORKSPACE + path) is wanted
