"""Gates and approvals at the command line: a person at a terminal, a call that waits, and what cannot be faked."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from k8e.cli import patience
from k8e.cli.person import framed
from k8e.cli.sessions import gates
from k8e.client.errors import InvalidRequest, Unreachable
from k8e.client.light.calls import Answer, Duplex, Request

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
PATIENCE_S = 60.0
TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fd = int(sys.argv[1]); fcntl.ioctl(fd, termios.TIOCSCTTY, 0); os.close(fd);"
    "os.execv(sys.argv[2], sys.argv[2:])"
)


def told(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    assert b"Traceback" not in done.stderr, done.stderr
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


class AtTerminal:
    """A command whose streams go elsewhere, and a person at the terminal that it has."""

    def __init__(self, *words: str, environ: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        argv = [
            sys.executable,
            "-c",
            TAKE_TERMINAL,
            str(slave),
            sys.executable,
            "-m",
            "k8e.cli.main",
            "sandbox",
            *words,
        ]
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environ,
            start_new_session=True,
            pass_fds=[slave],
        )
        self._slave = slave
        self.shown = ""

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            ready, _, _ = select.select([self._master], [], [], max(end - time.monotonic(), 0))
            assert ready, self.shown
            piece = os.read(self._master, 65536).decode()
            self.shown = (self.shown + piece).replace("\r\n", "\n")  # which may come in two pieces

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def ended(self) -> tuple[int, dict[str, object]]:
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, json.loads(out) if out else {}

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        os.close(self._slave)
        os.close(self._master)


@pytest.fixture
def at_terminal(environ: dict[str, str]) -> Iterator[Callable[..., AtTerminal]]:
    opened: list[AtTerminal] = []

    def run(*words: str) -> AtTerminal:
        opened.append(AtTerminal(*words, environ=environ))
        return opened[-1]

    yield run
    for each in opened:
        each.close()


@pytest.fixture
def session_id(k8e: Run) -> str:
    gated = ("egress", "write=/workspace/deploy", "workspace", "secrets", "command=rm -rf")
    return str(told(k8e("create", *(word for gate in gated for word in ("--gate", gate))))["session_id"])


@pytest.fixture
def asked(k8e: Run, session_id: str) -> str:
    action = "drop the table\nAllow this? [y/N] y\n" + "x" * 200
    return str(told(k8e("confirm", session_id, action, "--no-wait"))["approval_id"])


@pytest.fixture
def long_question(k8e: Run, session_id: str) -> str:
    action = "drop the table\n" + "\n".join(f"line {number}" for number in range(50))
    return str(told(k8e("confirm", session_id, action, "--no-wait"))["approval_id"])


def status(k8e: Run, approval_id: str) -> dict[str, object]:
    listed = told(k8e("approvals", "list", "--all"))["approvals"]
    assert isinstance(listed, list)
    found: dict[str, object] = next(each for each in listed if each["approval_id"] == approval_id)
    return found


def test_a_person_at_a_terminal_decides_what_their_own_user_asked(
    k8e: Run, asked: str, at_terminal: Callable[..., AtTerminal]
) -> None:
    person = at_terminal("approve", asked, "--reason", "seen")
    person.wait_for("[y/N] ")
    person.wait_for("Allow this? [y/N] ")
    person.type(b"y\n")
    assert person.ended() == (0, {"ok": True, "approval_id": asked, "approved": True})
    found = status(k8e, asked)
    uid = os.getuid()
    assert (found["status"], found["decided_by"], found["reason"]) == ("approved", f"uid:{uid} at a terminal", "seen")
    again = k8e("approve", asked)
    assert (again.returncode, told(again)["error"]) == (1, "conflict")
    assert f"already approved by uid:{uid} at a terminal" in str(told(again)["detail"])


def test_what_is_asked_cannot_look_like_a_line_of_ours(asked: str, at_terminal: Callable[..., AtTerminal]) -> None:
    person = at_terminal("approve", asked)
    person.wait_for("\nAllow this? [y/N] ")
    lines = person.shown.split("\n")
    assert lines[0] == "An agent asks, in its own words:"
    assert [line for line in lines if line.startswith("Allow this?")] == ["Allow this? [y/N] "]
    assert "  | Allow this? [y/N] y" in lines
    assert max(map(len, lines)) <= 80


def test_what_is_longer_than_the_screen_is_read_through_before_anything_can_be_said(
    k8e: Run, long_question: str, at_terminal: Callable[..., AtTerminal]
) -> None:
    person = at_terminal("approve", long_question)
    person.wait_for("(29 more lines: Enter to go on, anything else to stop) ")
    assert "Allow this?" not in person.shown
    person.type(b"\n")
    person.wait_for("(6 more lines")
    person.type(b"\n")
    person.wait_for("(that is all")
    assert all(f"  | line {number}\n" in person.shown for number in range(50))
    person.type(b"\n")
    person.wait_for("In short:\n  | drop the table\n")
    person.wait_for("\nAllow this? [y/N] ")
    person.type(b"y\n")
    assert person.ended()[0] == 0
    assert status(k8e, long_question)["status"] == "approved"


def test_a_yes_before_the_end_of_a_long_question_decides_nothing(
    k8e: Run, long_question: str, at_terminal: Callable[..., AtTerminal]
) -> None:
    person = at_terminal("approve", long_question)
    person.wait_for("more lines: Enter to go on")
    person.type(b"y\n")
    assert person.ended()[0] == 1
    assert status(k8e, long_question)["status"] == "pending"


@pytest.mark.parametrize("keys", [b"n\n", b"\n", b"yep\n", b"\x04"])
def test_anything_but_a_yes_decides_nothing(
    k8e: Run, asked: str, at_terminal: Callable[..., AtTerminal], keys: bytes
) -> None:
    person = at_terminal("approve", asked)
    person.wait_for("\nAllow this? [y/N] ")
    person.type(keys)
    code, answer = person.ended()
    assert (code, answer["ok"]) == (1, False)
    assert status(k8e, asked)["status"] == "pending"


def test_an_interrupt_decides_nothing(k8e: Run, asked: str, at_terminal: Callable[..., AtTerminal]) -> None:
    person = at_terminal("approve", asked)
    person.wait_for("\nAllow this? [y/N] ")
    person.process.send_signal(signal.SIGINT)
    assert person.ended() == (130, {})
    assert status(k8e, asked)["status"] == "pending"


def test_a_person_rejects_with_a_reason(k8e: Run, asked: str, at_terminal: Callable[..., AtTerminal]) -> None:
    person = at_terminal("approve", asked, "--reject", "--reason", "not on a Friday")
    person.wait_for("\nReject this? [y/N] ")
    person.type(b"yes\n")
    assert person.ended()[0] == 0
    assert (status(k8e, asked)["status"], status(k8e, asked)["reason"]) == ("rejected", "not on a Friday")


def test_without_a_terminal_the_user_that_asked_is_refused_and_told_what_works(
    k8e: Run, asked: str, environ: dict[str, str]
) -> None:
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "approve", asked]
    done = subprocess.run(
        argv, capture_output=True, input=b"y\n", env=environ, timeout=60, check=False, start_new_session=True
    )
    assert done.returncode == 2
    detail = str(told(done)["detail"])
    assert f"k8e sandbox approve {asked}" in detail
    assert "role approver" in detail
    assert status(k8e, asked)["status"] == "pending"


def test_a_terminal_is_not_asked_where_another_identity_decides(
    environ: dict[str, str], k8e: Run, asked: str, at_terminal: Callable[..., AtTerminal]
) -> None:
    words = ("sandbox-apikey", "create", "beside", "--role", "approver", "--owner", f"uid:{os.getuid()}")
    made = subprocess.run(
        [sys.executable, "-m", "k8e.cli.main", *words], capture_output=True, env=environ, timeout=60, check=True
    )
    key = str(json.loads(made.stdout)["key"])
    person = AtTerminal("approve", asked, environ=environ | {"K8E_SANDBOX_APIKEY": key})
    try:
        assert person.ended()[0] == 0
    finally:
        person.close()
    assert status(k8e, asked)["decided_by"] == "key:beside"


def test_a_session_shows_its_gates_as_they_are_asked_for(k8e: Run, session_id: str) -> None:
    shown = told(k8e("get", session_id))["gates"]
    assert shown == ["egress", "workspace", "secrets", "write=/workspace/deploy", "command=rm -rf"]
    assert told(k8e("get", str(told(k8e("create"))["session_id"])))["gates"] == []


def test_a_mistyped_gate_is_no_gate(k8e: Run) -> None:
    for bad in ("egres", "egress=1", "write", "write=", "command"):
        done = k8e("create", "--gate", bad)
        assert done.returncode == 1
        assert "gate" in str(told(done)["detail"])
        with pytest.raises(InvalidRequest):
            gates([bad])
    assert gates(["egress", "command=a=b"]) == {"egress": True, "write_paths": [], "commands": ["a=b"]}


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_call_that_waits_says_for_what_and_then_goes_on_or_ends(
    environ: dict[str, str], session_id: str, at_terminal: Callable[..., AtTerminal], is_allowed: bool
) -> None:
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "write", session_id, "deploy/app"]
    call = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, start_new_session=True
    )
    try:
        assert call.stdin is not None
        assert call.stderr is not None
        call.stdin.write(b"new")
        call.stdin.close()
        call.stdin = None
        line = call.stderr.readline().decode()
        assert line.startswith("k8e: waits for approval approval-")
        assert 'write 3 bytes to "deploy/app"' in line
        hint = call.stderr.readline().decode()
        approval_id = hint.split()[-1]
        person = at_terminal("approve", approval_id, *(() if is_allowed else ("--reject",)))
        person.wait_for("[y/N] ")
        assert 'A call waits for approval. It is to:\n  | write 3 bytes to "deploy/app"' in person.shown
        person.type(b"y\n")
        assert person.ended()[0] == 0
        out, _ = call.communicate(timeout=PATIENCE_S)
    finally:
        call.kill()
        call.communicate()
    answer = json.loads(out)
    assert call.returncode == (0 if is_allowed else 2)
    assert answer.get("ok") is True if is_allowed else " at a terminal" in answer["detail"]


def test_a_sub_agent_that_waits_says_for_what(k8e: Run, environ: dict[str, str]) -> None:
    """The question is its parent's; the tenant was gated when that was there already."""
    keep = [sys.executable, "-m", "k8e.cli.main", "secret", "set", "waiting:value"]
    subprocess.run(keep, input=b"x", capture_output=True, env=environ, timeout=60, check=True)
    parent = str(told(k8e("create", "--tenant", "waiting", "--secret", "TOKEN=waiting:value"))["session_id"])
    told(k8e("create", "--tenant", "waiting", "--gate", "secrets"))
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "subagent", parent]
    call = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ)
    try:
        assert call.stderr is not None
        assert select.select([call.stderr], [], [], PATIENCE_S)[0], "it waits and says nothing"
        line = call.stderr.readline().decode()
    finally:
        call.kill()
        call.communicate()
    assert line.startswith(f"k8e: waits for approval approval-{parent}-")
    assert 'sees the value of "waiting:value" as "TOKEN"' in line


class Beside:
    """A server that fails once and then has questions, of which one is this call's."""

    def __init__(self) -> None:
        self._looks = 0
        self.has_told = threading.Event()

    def unary(self, rpc: str, request: Request, *, timeout_s: float | None = None) -> Answer:
        if rpc == "WhoAmI":
            return Answer({"identity": "me"})
        self._looks += 1
        if self._looks == 1:
            raise Unreachable("gone for a moment")
        if self._looks == 3:
            self.has_told.set()
        common = {"session_id": "s", "asked_by": "me", "asked_at": str(int(time.time()))}
        others = ({"asked_at": "1000"}, {"asked_by": "you"}, {"session_id": "t"})
        asked = [common | other | {"approval_id": f"other-{at}"} for at, other in enumerate(others)]
        return Answer({"approvals": [*asked, common | {"approval_id": "mine", "action": "deploy"}]})

    def stream(
        self, rpc: str, requests: Sequence[Request] | Iterator[Request], *, timeout_s: float | None = None
    ) -> Iterator[Answer]:
        raise NotImplementedError

    def duplex(self, rpc: str) -> Duplex:
        raise NotImplementedError

    def close(self) -> None:
        pass


def test_only_the_calls_own_question_is_told_once_and_a_failure_does_not_end_the_looking(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(patience, "FIRST_LOOK_S", 0.01)
    server = Beside()
    with patience.Watch(server, "s"):
        assert server.has_told.wait(PATIENCE_S)
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if "waits for" in line] == ["k8e: waits for approval mine: deploy"]


def test_no_padding_makes_a_line_of_ours_from_words_of_others() -> None:
    for width in (40, 80):
        lines = framed('  arguments: "' + " " * 70 + "environment: none" + " " * 90 + 'input: none"', width)
        assert [line[:4] for line in lines] == ["  | ", *["  > "] * (len(lines) - 1)]


def test_a_frame_breaks_lines_where_a_terminal_would() -> None:
    assert framed("ab\ncd", 80) == ["  | ab", "  | cd"]
    assert framed("x" * 30, 20) == ["  | " + "x" * 14, "  > " + "x" * 14, "  > xx"]
    assert framed("表" * 8, 20) == ["  | " + "表" * 7, "  > 表"]
    assert framed("a\x1b[2Jb\tc\u3164", 80) == [r"  | a\x1b[2Jb\tc\u3164"]
