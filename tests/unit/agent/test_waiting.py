"""A command that still waits for its turn can be killed like any other: then it never begins."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any, cast

import pytest

from k8e.agent.execs import Exec, Launch
from k8e.agent.loop import Loop
from k8e.agent.runners import Handle, Runners
from tests.support.descriptors import descriptors, opened_and_kept

_SIZE = (30, 100)


class _FullSandbox:
    """Runners without room: who wants one waits until the test makes room."""

    is_tight = True

    def __init__(self) -> None:
        self.room: Callable[[], None] = lambda: None
        self.orders: list[dict[str, Any]] = []

    def make_room(self, then: Callable[[], None]) -> bool:
        self.room = then
        return True

    def take(self, owner: Callable[[dict[str, Any]], None]) -> Handle:
        return cast("Handle", self)

    def send(self, message: dict[str, Any], fds: list[int]) -> None:
        self.orders.append(message)


class _RoomySandbox(_FullSandbox):
    is_tight = False


def _new(sandbox: _FullSandbox) -> Exec:
    return Exec(Loop(), cast("Runners", sandbox), "exec-1")


def _launch(*, has_terminal: bool = False) -> Launch:
    launch = Launch(["touch", "/tmp/it-ran"], {}, "/")
    launch.size = _SIZE if has_terminal else None
    return launch


def _read_to_the_end(subject: Exec) -> None:
    """What the loop does when the command's last descriptor is closed."""
    for reader in list(subject._readers.values()):
        reader._readable(0)


@pytest.mark.parametrize("has_terminal", [False, True])
@pytest.mark.parametrize("verdict", ["killed", "timed_out"])
def test_a_command_killed_while_it_waits_for_room_never_begins(verdict: str, has_terminal: bool) -> None:
    sandbox = _FullSandbox()
    subject = _new(sandbox)
    before = descriptors()
    subject.start(_launch(has_terminal=has_terminal))
    subject.kill(verdict)
    sandbox.room()
    _read_to_the_end(subject)
    assert sandbox.orders == []
    assert subject.outcome is not None
    assert (subject.outcome["code"], subject.outcome["signal"], subject.outcome["reason"]) == (None, 9, verdict)
    assert opened_and_kept(before) == []


def test_a_command_killed_while_an_interpreter_was_awaited_is_not_started_without_one() -> None:
    sandbox = _RoomySandbox()
    subject = _new(sandbox)
    subject.kill()
    subject.start(_launch())
    _read_to_the_end(subject)
    assert sandbox.orders == []
    assert subject.outcome is not None
    assert subject.outcome["reason"] == "killed"


def test_a_command_that_nobody_killed_begins_when_there_is_room() -> None:
    sandbox = _FullSandbox()
    subject = _new(sandbox)
    subject.start(_launch())
    assert sandbox.orders == []
    sandbox.room()
    assert [order["argv"] for order in sandbox.orders] == [["touch", "/tmp/it-ran"]]
    subject._hear({"lost": True})
    _read_to_the_end(subject)


def test_signals_that_come_before_the_news_of_its_start_reach_it() -> None:
    sandbox = _RoomySandbox()
    subject = _new(sandbox)
    subject.start(_launch())
    subject.signal(signal.SIGUSR1)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as command:
        subject._hear({"started": command.pid})
        assert command.wait() == -signal.SIGUSR1
    subject._hear({"exited": signal.SIGUSR1})
    subject.signal(signal.SIGUSR1)  # to what is over: nothing, and no error
    _read_to_the_end(subject)


def test_signals_to_what_is_over_before_the_news_of_its_start_are_let_pass() -> None:
    sandbox = _RoomySandbox()
    subject = _new(sandbox)
    subject.start(_launch())
    subject.signal(signal.SIGUSR1)
    with subprocess.Popen(["true"], start_new_session=True) as command:
        command.wait()
    subject._hear({"started": command.pid})
    subject._hear({"exited": 0})
    _read_to_the_end(subject)
