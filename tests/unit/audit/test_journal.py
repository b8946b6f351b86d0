"""The trail on disk: attacks on its files, crashes in the middle of a write, and disks without room."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k8e.audit import Journal, records, verify
from k8e.audit.chain import End, sealed
from k8e.audit.files import Trail

PATIENCE_S = 60.0


def _write(data_dir: Path, *numbers: int, **options: Any) -> None:
    journal = Journal(data_dir, **options)
    for number in numbers:
        journal.add({"rpc": "Exec", "n": number})
    journal.close()


def _numbers(data_dir: Path) -> list[object]:
    return [record["n"] for record in records(data_dir) if "n" in record]


def _lines(data_dir: Path) -> tuple[Path, list[bytes]]:
    path = Trail(data_dir).files()[-1]
    return path, path.read_bytes().splitlines(keepends=True)


def test_what_is_added_is_there_in_order_over_restarts(tmp_path: Path) -> None:
    for start in range(0, 300, 100):
        _write(tmp_path, *range(start, start + 100))
    assert _numbers(tmp_path) == list(range(300))
    found = verify(tmp_path)
    assert (found.ok, found.records, found.note) == (True, 300, "")


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    _write(tmp_path, 1)
    trail = Trail(tmp_path)
    assert trail.directory.stat().st_mode & 0o777 == 0o700
    for path in (*trail.files(), trail.head_path, trail.key_path):
        assert path.stat().st_mode & 0o777 == 0o600


ATTACKS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "altered": (lambda lines: [*lines[:4], lines[4].replace(b"Exec", b"Read"), *lines[5:]], "altered"),
    "removed": (lambda lines: [*lines[:4], *lines[5:]], "record 5 is missing"),
    "first removed": (lambda lines: lines[1:], "record 1 is missing"),
    "re-ordered": (lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], "missing before it"),
    "doubled": (lambda lines: [*lines[:4], lines[3], *lines[4:]], "out of order"),
    "cut at the end": (lambda lines: lines[:-2], "records 9 to 10 are missing: the end was cut off"),
    "cut within a line": (lambda lines: [*lines[:-1], lines[-1][:-5]], "records 10 to 10 are missing"),
    "emptied": (lambda lines: [], "records 1 to 10 are missing"),
    "forged at the end": (lambda lines: [*lines, _forged(lines[-1])], "forged"),
    "garbage": (lambda lines: [*lines, b"garbage\n"], "not readable"),
}


def _forged(last: bytes) -> bytes:
    told = json.loads(last)
    return sealed({"rpc": "Exec"}, after=End(told["seq"], told["hash"]), key=b"guessed" * 4 + b"key!")[0]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_on_the_records_is_found_and_stays_found_after_a_restart(tmp_path: Path, attack: str) -> None:
    _write(tmp_path, *range(10))
    assert verify(tmp_path).ok, "the control"
    path, lines = _lines(tmp_path)
    change, reason = ATTACKS[attack]
    path.write_bytes(b"".join(change(lines)))
    found = verify(tmp_path)
    assert not found.ok
    assert reason in found.problem
    _write(tmp_path, 10)
    assert not verify(tmp_path).ok
    assert _numbers(tmp_path)[-1] == 10, "the service goes on recording"


def test_a_removed_file_or_head_or_key_is_found_and_stays_found(tmp_path: Path) -> None:
    for start in range(0, 50, 10):
        _write(tmp_path / "good", *range(start, start + 10), kept_bytes=2000 * 64)
    assert len(Trail(tmp_path / "good").files()) > 1
    assert verify(tmp_path / "good").ok
    for victim in ("first", "last", "head", "old head", "key", "all but the key"):
        data_dir = tmp_path / victim.replace(" ", "-")
        shutil.copytree(tmp_path / "good", data_dir)
        _remove(Trail(data_dir), victim)
        assert not verify(data_dir).ok, victim
        _write(data_dir, 100)
        assert not verify(data_dir).ok, victim


def _remove(trail: Trail, victim: str) -> None:
    match victim:
        case "first":
            trail.files()[0].unlink()
        case "last":
            trail.files()[-1].unlink()
        case "head":
            trail.head_path.unlink()
        case "old head":
            trail.head_path.write_text(trail.head_path.read_text().replace("[50,", "[40,"))
        case "key":
            trail.key_path.unlink()
        case _:
            shutil.rmtree(trail.directory)


def test_a_crash_in_the_middle_of_a_write_is_mended_and_told(tmp_path: Path) -> None:
    _write(tmp_path, 0, 1, 2)
    path, _ = _lines(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"rpc":"Exec","n":3,"se')
    before = verify(tmp_path)
    assert before.ok
    assert "cut short" in before.note
    _write(tmp_path, 4)
    assert verify(tmp_path).ok
    assert _numbers(tmp_path) == [0, 1, 2, 4]
    (repaired,) = [each for each in records(tmp_path) if each["rpc"] == "audit.repaired"]
    assert repaired["cut_bytes"] == 23


def test_a_crash_before_the_head_moved_loses_nothing(tmp_path: Path) -> None:
    _write(tmp_path, 0, 1)
    head = Trail(tmp_path).head_path.read_bytes()
    _write(tmp_path, 2, 3)
    Trail(tmp_path).head_path.write_bytes(head)
    assert verify(tmp_path).ok
    _write(tmp_path, 4)
    assert verify(tmp_path).records == 5


def test_a_crash_right_after_a_new_file_was_begun_loses_nothing(tmp_path: Path) -> None:
    _write(tmp_path, 0, 1)
    Trail(tmp_path).file_from(3).touch()
    _write(tmp_path, 2, 3)
    assert _numbers(tmp_path) == [0, 1, 2, 3]
    assert verify(tmp_path).ok
    assert len(Trail(tmp_path).files()) == 2


def test_files_are_bounded_and_the_head_says_where_the_chain_begins(tmp_path: Path) -> None:
    for start in range(0, 260, 20):
        _write(tmp_path, *range(start, start + 20), kept_bytes=6000, files=3)
    assert len(Trail(tmp_path).files()) == 3
    found = verify(tmp_path)
    assert found.ok, found
    assert 0 < found.records < 260
    Trail(tmp_path).files()[0].unlink()
    assert not verify(tmp_path).ok


def test_a_full_disk_is_told_loudly_and_nothing_that_waited_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("k8e.audit.journal._RETRY_S", 0.01)
    journal = Journal(tmp_path)
    journal.add({"n": 0})
    real, refused, has_room = os.write, threading.Event(), threading.Event()

    def write(fd: int, data: bytes) -> int:
        if fd != journal._fd or has_room.is_set():
            return real(fd, data)
        refused.set()
        if len(data) % 2:
            return real(fd, data[:10])  # what fits
        raise OSError(errno.ENOSPC, "No space left on device")

    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr("k8e.audit.journal.os.write", write)
        for number in range(1, 6):
            journal.add({"n": number, "x": "y" * number})
        assert refused.wait(PATIENCE_S)
    has_room.set()
    journal.close()
    assert "THE AUDIT TRAIL CANNOT BE WRITTEN" in caplog.text
    assert verify(tmp_path).ok
    assert _numbers(tmp_path) == list(range(6))


def test_what_was_lost_beyond_the_bound_is_itself_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8e.audit.journal._RETRY_S", 0.01)
    monkeypatch.setattr("k8e.audit.journal._WAITING", 3)
    journal = Journal(tmp_path)
    real, refused, has_room = os.write, threading.Event(), threading.Event()

    def write(fd: int, data: bytes) -> int:
        if fd == journal._fd and not has_room.is_set():
            refused.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr("k8e.audit.journal.os.write", write)
    sent = 40
    for number in range(sent):
        journal.add({"n": number})
    assert refused.wait(PATIENCE_S)
    has_room.set()
    journal.close()
    kept = len(_numbers(tmp_path))
    lost = sum(int(each["records"]) for each in records(tmp_path) if each.get("rpc") == "audit.lost")
    assert verify(tmp_path).ok
    assert 0 < kept < sent
    assert kept + lost == sent


def test_a_directory_without_a_trail_is_said(tmp_path: Path) -> None:
    assert "no audit trail was kept here" in verify(tmp_path).problem
    assert list(records(tmp_path)) == []
