"""Who decides: an identity, or the person in front of it, and only where the kernel vouches for the user."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from k8e.doors.service.presence import Presence
from k8e.errors import Denied, InvalidSpec
from k8e.identity.callers import Role
from k8e.identity.terminals import has_terminal
from tests.support.calls import StraightCall, as_key, as_uid

SEEN = Presence(has_terminal=lambda pid: pid == 7)


def local(*, pid: int = 0, via: str = "unix", uid: int = 1000) -> StraightCall:
    call = as_uid(uid)
    return StraightCall(replace(call.caller, pid=pid, via=via), call.speaks_for)


@pytest.mark.parametrize(
    ("call", "presence", "decider"),
    [
        (local(), "", "uid:1000"),
        (local(pid=7), "terminal", "uid:1000 at a terminal"),
        (local(), "elicitation", "uid:1000 in an agent's window"),
        (local(via="loopback"), "elicitation", "uid:1000 in an agent's window"),
        (as_key("phone", owner="uid:1000", role=Role.APPROVER), "", "key:phone"),
    ],
)
def test_a_decision_is_made_as_an_identity_or_as_the_person_in_front_of_it(
    call: StraightCall, presence: str, decider: str
) -> None:
    assert SEEN.decider(call, presence) == decider


@pytest.mark.parametrize("presence", ["terminal", "elicitation"])
@pytest.mark.parametrize("via", ["key", "certificate"])
def test_no_key_and_no_certificate_is_a_person(via: str, presence: str) -> None:
    call = as_key("agent", owner="uid:1000", via=via)
    # Even a process number that has a terminal does not help: the kernel did not say whose key it is.
    call = StraightCall(replace(call.caller, pid=7))
    with pytest.raises(Denied, match="no person"):
        SEEN.decider(call, presence)
    assert SEEN.decider(call, "") == "key:agent"


@pytest.mark.parametrize("presence", ["terminal", "elicitation"])
def test_nobody_is_present_for_another_owner(presence: str) -> None:
    admin = StraightCall(replace(as_uid(0, role=Role.ADMIN).caller, pid=7))
    speaking = replace(admin, speaks_for=as_uid(1000).owner)
    with pytest.raises(Denied, match="another owner"):
        SEEN.decider(speaking, presence)
    assert SEEN.decider(admin, presence).startswith("uid:0 ")


@pytest.mark.parametrize("presence", ["terminal", "elicitation"])
def test_a_server_may_believe_in_nobody(presence: str) -> None:
    strict = replace(SEEN, allowed=False)
    with pytest.raises(Denied, match="approve-in-person"):
        strict.decider(local(pid=7), presence)
    assert strict.decider(local(pid=7), "") == "uid:1000"
    assert SEEN.decider(local(pid=7), presence) != "uid:1000"


def test_a_terminal_that_cannot_be_seen_is_none_and_the_refusal_says_what_to_do() -> None:
    for call, word in ((local(via="loopback"), "without --endpoint"), (local(pid=8), "has no terminal")):
        with pytest.raises(Denied, match=word) as caught:
            SEEN.decider(call, "terminal")
        assert "k8e sandbox approve" in str(caught.value)


@pytest.mark.parametrize("presence", ["Terminal", "key", "terminal elicitation", "\0"])
def test_an_unknown_way_of_being_there_is_a_mistake(presence: str) -> None:
    with pytest.raises(InvalidSpec, match="presence"):
        SEEN.decider(local(pid=7), presence)


def test_the_kernel_says_who_has_a_terminal() -> None:
    master, slave = pty.openpty()
    program = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); print(flush=True); open(0).read()"
    with_one = subprocess.Popen(
        [sys.executable, "-c", program], stdin=slave, stdout=subprocess.PIPE, start_new_session=True
    )
    without = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        assert with_one.stdout is not None
        with_one.stdout.readline()
        assert has_terminal(with_one.pid)
        assert not has_terminal(without.pid)
    finally:
        for process in (with_one, without):
            process.kill()
            process.communicate()
        os.close(slave)
        os.close(master)
    assert not has_terminal(with_one.pid)


def test_a_name_cannot_move_the_field_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "stat").write_bytes(b"5 (a) S 1 1 1 34816) S 1 1 1 0 -1 4194560\n")
    assert not has_terminal(5, proc=tmp_path)
    (tmp_path / "5" / "stat").write_bytes(b"5 (a) S 1 1 1 0) S 1 1 1 34816 -1 4194560\n")
    assert has_terminal(5, proc=tmp_path)
