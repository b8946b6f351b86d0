"""Programs that set-up starts: their output, their end, their deadline."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from k8e.errors import HostUnsupported
from k8e.setup import report
from k8e.setup.report import Silent, finish, work

PATIENCE_S = 60.0


class Listener:
    """Keeps what was said, and leaves a mark that something was."""

    def __init__(self, mark: Path) -> None:
        self.lines: list[str] = []
        self._mark = mark

    def say(self, text: str) -> None:
        self.lines.append(text)
        self._mark.touch()


def test_output_and_code_come_back() -> None:
    ended = finish(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=60)
    assert (ended.code, ended.output) == (3, "out\nerr\n")


def test_a_daemon_left_behind_neither_delays_nor_survives() -> None:
    ended = finish(["sh", "-c", "sleep 86399 & echo $!"], timeout_s=60)
    assert ended.code == 0
    # It was killed before `finish` came back; a busy machine takes its time to do it.
    deadline = time.monotonic() + PATIENCE_S
    while state_of(ended.output.strip()) not in {"", "Z", "Zs"}:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state_of(pid: str) -> str:
    """As `ps` says it; nothing of one that is gone."""
    return subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False).stdout.strip()


def test_a_deadline_ends_the_program() -> None:
    assert finish(["sleep", "86398"], timeout_s=0.05).code is None


def test_a_long_program_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "HEARTBEAT_S", 0.02)
    mark = tmp_path / "heard"
    listener = Listener(mark)
    # It takes as long as it takes until it is heard of.
    finish(
        ["sh", "-c", f"until [ -e {mark} ]; do sleep 0.02; done"], timeout_s=60, label="a long thing", report=listener
    )
    assert any("a long thing" in line for line in listener.lines)


def test_a_failure_carries_the_command_and_its_last_lines() -> None:
    with pytest.raises(HostUnsupported, match=r"(?s)fetching: sh .*exit code 7.*the reason"):
        work(["sh", "-c", "echo the reason; exit 7"], label="fetching", report=Silent(), timeout_s=60)


def test_a_missing_program_is_an_unsupported_host() -> None:
    with pytest.raises(HostUnsupported, match="cannot start"):
        work(["/nonexistent/program"], label="x", report=Silent(), timeout_s=60)
