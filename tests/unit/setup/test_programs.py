"""Programs that set-up starts: their output, their end, their deadline, and our own death."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from k8e.setup import programs
from k8e.setup.programs import finish
from tests.support.eventually import eventually

# Starts the program of its last argument as set-up would, and is killed meanwhile.
STARTER = """
import sys
from k8e.setup.programs import finish
finish(["sh", "-c", sys.argv[2]], timeout_s=600, is_cuttable=sys.argv[1] == "cuttable")
"""


def test_output_and_code_come_back() -> None:
    ended = finish(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=60)
    assert (ended.code, ended.output) == (3, "out\nerr\n")


def test_only_the_end_of_much_output_is_kept_and_the_log_has_all(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b", buffering=0) as log:
        log.write(b"before\n")
        ended = finish(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo end"], timeout_s=60, log=log)
    assert (len(ended.output), ended.output[-5:]) == (programs.OUTPUT_BYTES, "xend\n")
    assert (tmp_path / "log").stat().st_size == len("before\n") + 3_000_000 + len("end\n")


def test_a_daemon_left_behind_neither_delays_nor_survives() -> None:
    ended = finish(["sh", "-c", "sleep 86399 & echo $!"], timeout_s=60)
    assert ended.code == 0
    assert eventually(lambda: has_ended(ended.output.strip()))


def has_ended(pid: str) -> bool:
    """Gone, or only waiting for whoever asks how it ended."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False)
    return shown.stdout.strip() in {"", "Z", "Zs"}


def test_a_deadline_ends_the_program() -> None:
    assert finish(["sleep", "86398"], timeout_s=0.05).code is None


def test_what_must_not_be_cut_off_has_the_time_to_end(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'sleep 0.1; echo finished; exit 0' INT; touch {ready}; while :; do sleep 0.02; done"
    waited = False

    def wait_for_it() -> None:
        nonlocal waited
        waited = eventually(ready.exists)

    ended = finish(["sh", "-c", script], timeout_s=1.5, tick=wait_for_it, is_cuttable=False)
    assert (waited, ended.code, ended.output) == (True, None, "finished\n")


def killed_starter(kind: str, script: str, begun: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER, kind, script]) as starter:
        assert eventually(begun.exists)
        starter.kill()


def test_nothing_goes_on_for_a_set_up_that_was_killed(tmp_path: Path) -> None:
    begun = tmp_path / "pid"
    killed_starter("cuttable", f"echo $$ >{begun}.new; mv {begun}.new {begun}; exec sleep 86397", begun)
    assert eventually(lambda: has_ended(begun.read_text().strip()))


def test_what_must_not_be_cut_off_goes_on_to_its_end(tmp_path: Path) -> None:
    begun, go, done = tmp_path / "begun", tmp_path / "go", tmp_path / "done"
    killed_starter("whole", f"touch {begun}; until [ -e {go} ]; do sleep 0.02; done; touch {done}", begun)
    assert not done.exists()
    go.touch()
    assert eventually(done.exists)
