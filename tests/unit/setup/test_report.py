"""Programs that set-up starts: their output, their end, their deadline."""

from __future__ import annotations

import subprocess

import pytest

from k8e.errors import HostUnsupported
from k8e.setup import report
from k8e.setup.report import Silent, finish, work


class Listener:
    """Keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_output_and_code_come_back() -> None:
    ended = finish(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=5)
    assert (ended.code, ended.output) == (3, "out\nerr\n")


def test_a_daemon_left_behind_neither_delays_nor_survives() -> None:
    ended = finish(["sh", "-c", "sleep 86399 & echo $!"], timeout_s=5)
    found = subprocess.run(
        ["ps", "-o", "stat=", "-p", ended.output.strip()], capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() in {"", "Z", "Zs"}


def test_a_deadline_ends_the_program() -> None:
    assert finish(["sleep", "86398"], timeout_s=0.05).code is None


def test_a_long_program_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "HEARTBEAT_S", 0.02)
    listener = Listener()
    finish(["sleep", "0.2"], timeout_s=5, label="a long thing", report=listener)
    assert any("a long thing" in line for line in listener.lines)


def test_a_failure_carries_the_command_and_its_last_lines() -> None:
    with pytest.raises(HostUnsupported, match=r"(?s)fetching: sh .*exit code 7.*the reason"):
        work(["sh", "-c", "echo the reason; exit 7"], label="fetching", report=Silent(), timeout_s=5)


def test_a_missing_program_is_an_unsupported_host() -> None:
    with pytest.raises(HostUnsupported, match="cannot start"):
        work(["/nonexistent/program"], label="x", report=Silent(), timeout_s=5)
