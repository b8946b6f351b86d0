"""The choice of a runsc: which are new enough, which pass, and what is written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8e.errors import HostUnsupported
from k8e.setup import gvisor
from k8e.setup.report import Silent

GOOD = """#!/bin/sh
case "$1" in --version) echo "runsc version release-20260101.0"; exit 0 ;; esac
echo k8e-probe
"""


def _program(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("release-20240729.0", 20240729),
        ("0.0~20221219.0-2+b3", 20221219),
        (gvisor.PINNED, 20260905),
        ("VERSION_MISSING", 0),
        ("", 0),
    ],
)
def test_the_date_is_read_from_every_kind_of_version(text: str, date: int) -> None:
    assert gvisor.version_date(text) == date


def test_the_pinned_revision_is_new_enough() -> None:
    assert gvisor.version_date(gvisor.PINNED) >= gvisor.OLDEST


def test_a_probe_that_answers_passes(tmp_path: Path) -> None:
    assert gvisor.probe(_program(tmp_path / "runsc", GOOD)) == ""


def test_a_probe_that_fails_says_why(tmp_path: Path) -> None:
    assert "no such platform" in gvisor.probe(
        _program(tmp_path / "runsc", "#!/bin/sh\necho no such platform; exit 3\n")
    )


def test_a_probe_that_hangs_is_ended_with_all_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gvisor, "PROBE_TIMEOUT_S", 0.3)
    hanging = _program(tmp_path / "runsc", "#!/bin/sh\nsleep 60 & sleep 60\n")
    assert "no answer" in gvisor.probe(hanging)


def test_a_program_that_is_not_one_cannot_be_started(tmp_path: Path) -> None:
    assert "cannot be started" in gvisor.probe(tmp_path / "missing")


def test_the_choice_is_recorded_and_reused_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _program(tmp_path / "runsc", GOOD)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tools = tmp_path / "tools"
    chosen = gvisor.acquire(tools, Silent(), env={})
    assert (chosen.path, chosen.version, chosen.origin) == (str(program), "release-20260101.0", "found on PATH")
    assert gvisor.recorded(tools) == chosen
    _program(program, GOOD + "# replaced\n")
    assert gvisor.recorded(tools) is None


def test_when_nothing_works_each_origin_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = _program(tmp_path / "runsc", GOOD.replace("20260101", "20221219"))
    monkeypatch.setattr(gvisor, "ORIGINS", (("found on PATH", lambda *_: old), ("archive", lambda *_: None)))
    with pytest.raises(HostUnsupported) as caught:
        gvisor.acquire(tmp_path / "tools", Silent(), env={})
    assert "is older than" in str(caught.value)
    assert "archive: not available" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"path": "/x"}'])
def test_a_damaged_record_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "runsc.json").write_text(text, encoding="utf-8")
    assert gvisor.recorded(tmp_path) is None
