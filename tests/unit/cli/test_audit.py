"""`k8e audit` on a trail of its own."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from k8e.audit import Journal
from k8e.audit.files import Trail
from k8e.cli import audit


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    journal = Journal(tmp_path)
    for number in range(5):
        journal.add({"rpc": "Exec", "session_id": f"s{number % 2}", "identity": "uid:1", "n": number})
    journal.close()
    return tmp_path


def _args(data_dir: Path, **more: object) -> argparse.Namespace:
    return argparse.Namespace(data_dir=str(data_dir), **more)


@pytest.mark.parametrize("is_json", [False, True])
def test_verify_says_whether_the_trail_is_whole(
    data_dir: Path, capfd: pytest.CaptureFixture[str], is_json: bool
) -> None:
    assert audit.check(_args(data_dir, json=is_json)) == 0
    said = capfd.readouterr().out
    assert json.loads(said)["records"] == 5 if is_json else "whole: 5 records" in said
    path = Trail(data_dir).files()[0]
    path.write_bytes(path.read_bytes().replace(b'"n":2', b'"n":7'))
    assert audit.check(_args(data_dir, json=is_json)) == 1
    said = capfd.readouterr().out
    assert f"{path.name}:3" in said
    assert "altered" in said


def test_show_prints_the_newest_oldest_first(data_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert audit.show(_args(data_dir, limit=2, session_id="")) == 0
    assert [json.loads(line)["n"] for line in capfd.readouterr().out.splitlines()] == [3, 4]
    assert audit.show(_args(data_dir, limit=0, session_id="s1")) == 0
    assert [json.loads(line)["n"] for line in capfd.readouterr().out.splitlines()] == [1, 3]


def test_a_trail_that_is_not_there_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert audit.check(_args(tmp_path, json=False)) == 1
    assert "no audit trail was kept here" in capfd.readouterr().out
    assert audit.show(_args(tmp_path, limit=5, session_id="")) == 0
