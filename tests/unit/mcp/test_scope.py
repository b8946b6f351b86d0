"""How much output of one client's calls is kept in files of its sessions."""

from __future__ import annotations

import pytest

from k8e.mcp import scope
from k8e.mcp.scope import OutputFile, OutputFiles


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "OUTPUT_FILES", 3)
    monkeypatch.setattr(scope, "OUTPUT_BYTES", 100)


def file(number: int) -> OutputFile:
    return OutputFile("s", f"/tmp/k8e-output/{number}")


def test_the_oldest_that_nobody_writes_go_first() -> None:
    files = OutputFiles()
    for number in range(3):
        assert files.grow(file(number), 30) == (True, [])
        files.end(file(number), is_kept=True)
    assert files.grow(file(3), 10) == (True, [file(0)])
    assert files.grow(file(3), 70) == (True, [file(1), file(2)])


def test_what_is_still_written_stays_and_another_has_to_do_without() -> None:
    files = OutputFiles()
    assert files.grow(file(1), 60) == (True, [])
    assert files.grow(file(2), 60) == (False, [])
    files.end(file(2), is_kept=False)
    assert files.grow(file(1), 40) == (True, [])
    files.end(file(1), is_kept=True)
    assert files.grow(file(3), 60) == (True, [file(1)])


def test_what_was_not_kept_takes_no_room() -> None:
    files = OutputFiles()
    for number in range(10):
        assert files.grow(file(number), 100) == (True, [])
        files.end(file(number), is_kept=False)
