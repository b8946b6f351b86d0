"""The log in a file of ours stays bounded and loses nothing of the end; any other output is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LIMIT = 4000

# Logs a thousand lines and ends with words that go through no logger.
_PROGRAM = """
import logging, os, sys
from pathlib import Path
from k8e import logs
logs.configure("info", Path(sys.argv[1]), limit_bytes=int(sys.argv[2]))
for number in range(1000):
    logging.info("line", extra={"number": number})
os.write(1, b"to standard output\\n")
os.write(2, b"last words\\n")
"""


def _run(file: Path, output: Path) -> None:
    with output.open("ab") as log:
        argv = [sys.executable, "-c", _PROGRAM, str(file), str(_LIMIT)]
        subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)


def test_a_full_log_becomes_the_one_before_and_both_stay_small(tmp_path: Path) -> None:
    log, before = tmp_path / "server.log", tmp_path / "server.log.1"
    _run(log, log)
    assert {path.name for path in tmp_path.iterdir()} == {"server.log", "server.log.1"}
    line = 200
    assert _LIMIT <= before.stat().st_size < _LIMIT + line
    assert log.stat().st_size < _LIMIT + line
    text = before.read_text() + log.read_text()
    numbers = [int(line.rpartition("=")[2]) for line in text.splitlines() if " line " in line]
    assert numbers == list(range(numbers[0], 1000)), "no gap, and the end is there"
    assert log.read_text().endswith("to standard output\nlast words\n")


def test_a_second_process_goes_on_in_the_same_file(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    _run(log, log)
    _run(log, log)
    assert len(list(tmp_path.iterdir())) == 2
    assert log.read_text().endswith("last words\n")


def test_an_output_that_is_not_that_file_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "mine"
    _run(tmp_path / "server.log", other)
    assert {path.name for path in tmp_path.iterdir()} == {"mine"}
    assert other.stat().st_size > 10 * _LIMIT


def test_a_file_that_somebody_moved_away_is_not_touched_again(tmp_path: Path) -> None:
    log, moved = tmp_path / "server.log", tmp_path / "kept"
    log.write_bytes(b"x" * (_LIMIT - 1))
    program = _PROGRAM.replace(
        "for number", f"os.rename({str(log)!r}, {str(moved)!r})\nopen(sys.argv[1], 'w').close()\nfor number"
    )
    with log.open("ab") as output:
        argv = [sys.executable, "-c", program, str(log), str(_LIMIT)]
        subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True)
    assert moved.stat().st_size < 2 * _LIMIT
    assert log.read_text().endswith("last words\n")
