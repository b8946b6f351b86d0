"""What people use: a terminal, live tables, logs, completion, and the catalogue of commands."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k8e.cli.catalog import tree
from k8e.cli.completion import script
from k8e.cli.history import show_events
from k8e.cli.table import duration, lines, size
from k8e.cli.top import Reading, read, rows
from k8e.client.light.calls import Answer, Request
from k8e.client.light.unix import UnixCalls

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
PATIENCE_S = 60.0


def told(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    assert b"Traceback" not in done.stderr
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


@pytest.fixture
def session_id(k8e: Run) -> str:
    return str(told(k8e("create"))["session_id"])


class Screen:
    """A person at a terminal."""

    def __init__(self, argv: list[str], environ: dict[str, str], *, rows: int = 30, columns: int = 100) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True
        )
        self.shown = b""

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            ready, _, _ = select.select([self.master], [], [], deadline - time.monotonic())
            assert ready, self.shown
            self.shown += os.read(self.master, 65536)

    def modes(self) -> list[object]:
        return termios.tcgetattr(self._slave)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._slave)
        os.close(self.master)


@pytest.fixture
def screen(environ: dict[str, str], session_id: str) -> Iterator[Screen]:
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "shell", session_id, "--", "/bin/bash", "--norc"]
    opened = Screen(argv, environ | {"TERM": "dumb"})
    yield opened
    opened.close()


def test_output_is_aligned_and_cannot_steer_the_terminal() -> None:
    shown = lines(
        [{"name": "a\x1b[2J", "memory_bytes": 1536, "is": True}, {"name": "", "memory_bytes": 0, "is": False}]
    )
    assert shown == ["NAME      MEMORY_BYTES  IS", r"a\x1b[2J  1.5 KiB       yes", "-         0 B           no"]
    assert lines([]) == []
    assert (size(1023), size(5 * 1024**3)) == ("1023 B", "5.0 GiB")
    assert [duration(ms) for ms in (0, 59_940, 61_000, 7_260_000)] == ["0.0 s", "59.9 s", "1 min 1 s", "2 h 1 min"]


def test_a_listing_is_json_or_a_table(k8e: Run, session_id: str) -> None:
    assert session_id in k8e("sessions").stdout.decode()
    table = k8e("sessions", "--output", "table").stdout.decode().splitlines()
    assert table[0].split() == [
        "SESSION_ID",
        "PHASE",
        "RUNTIME_CLASS",
        "TENANT_ID",
        "BACKGROUND_RUNS",
        "EXPIRES_AT",
        "OWNER",
    ]
    assert any(line.startswith(session_id + " ") for line in table[1:])
    assert k8e("sessions", "--output", "xml").returncode == 1


def test_busy_sessions_come_first_and_new_ones_have_no_rate() -> None:
    a, b, c = (("uid:0", name) for name in "abc")
    before = Reading(0.0, {}, {a: 1.0, b: 1.0})
    now = Reading(2.0, {whose: {"session_id": whose[1]} for whose in (a, b, c)}, {a: 1.0, b: 2.0, c: 9.0})
    assert [(row["session_id"], row["cpu_percent"]) for row in rows(before, now)] == [
        ("b", 50.0),
        ("a", 0.0),
        ("c", 0.0),
    ]


def test_top_shows_sessions_once(k8e: Run, session_id: str) -> None:
    table = k8e("top", "--once").stdout.decode()
    assert session_id in table
    listed = told(k8e("top", "--once", "--output", "json"))["sessions"]
    assert isinstance(listed, list)
    assert session_id in {each["session_id"] for each in listed}


class Listing(UnixCalls):
    """A server with two owners who chose the same id."""

    def unary(self, rpc: str, request: Request, *, timeout_s: float | None = None) -> Answer:
        theirs = [("uid:0", 1.5), ("uid:7", 2.5)]
        return Answer(
            {"sessions": [{"session_id": "mine", "owner": who, "usage": {"cpu_s": cpu_s}} for who, cpu_s in theirs]}
        )


def test_sessions_of_two_owners_are_two_whatever_their_ids(k8e: Run, session_id: str) -> None:
    found = read(argparse.Namespace(all_owners=True), Listing("/nowhere"))
    assert sorted(str(row["owner"]) for row in rows(found, found)) == ["uid:0", "uid:7"]
    assert found.cpu_s == {("uid:0", "mine"): 1.5, ("uid:7", "mine"): 2.5}
    heading, *table = k8e("top", "--once", "--all-owners").stdout.decode().splitlines()
    assert heading.endswith("OWNER")
    assert any(line.startswith(session_id) and line.endswith(f"uid:{os.getuid()}") for line in table)
    assert b"OWNER" not in k8e("top", "--once").stdout


def test_events_and_processes_are_shown(k8e: Run, session_id: str) -> None:
    for _ in range(2):
        k8e("run", "--session-id", session_id, "exit 3")
    shown = told(k8e("events", session_id, "--limit", "1"))
    assert list(shown) == ["events", "returned", "truncated"]
    assert (shown["returned"], shown["truncated"]) == (1, True)
    assert list(told(k8e("ps", session_id))) == ["processes"]
    assert k8e("ps", "sess-none").returncode == 1


def arguments(k8e: Run, session_id: str) -> list[object]:
    found = told(k8e("ps", session_id))["processes"]
    assert isinstance(found, list)
    return [each["args"] for each in found]


def test_processes_have_their_arguments_cut_only_at_a_terminal(
    k8e: Run, session_id: str, environ: dict[str, str]
) -> None:
    words = f"\x1b[2J {'long ' * 30}end"
    code = f"exec bash -c 'sleep 5000; true' '{words}'"
    begun = told(k8e("run", "--background", "--session-id", session_id, code))
    deadline = time.monotonic() + PATIENCE_S
    while f"bash -c sleep 5000; true {words}" not in arguments(k8e, session_id):
        assert time.monotonic() < deadline
    heading, *lines = k8e("ps", session_id, "--output", "table").stdout.decode().splitlines()
    assert heading.split() == ["PID", "STATE", "COMM", "ARGS"]
    (line,) = [each for each in lines if each.endswith("long end")]
    assert r"\x1b[2J" in line
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "ps", session_id, "--output", "table"]
    with contextlib.closing(Screen(argv, environ)) as opened:
        opened.wait_for(b"long ")
        assert opened.process.wait(PATIENCE_S) == 0
    assert b"end" not in opened.shown
    assert b"\x1b" not in opened.shown
    k8e("kill-run", str(begun["run_id"]))


def test_events_are_objects_and_a_table(k8e: Run, session_id: str) -> None:
    k8e("run", "--session-id", session_id, "true")
    shown = told(k8e("events", session_id))["events"]
    assert isinstance(shown, list)
    assert shown
    assert all(isinstance(each, dict) and each["event"] for each in shown)
    heading, *table = k8e("events", session_id, "--output", "table").stdout.decode().splitlines()
    assert heading.split() == ["TIME", "EVENT", "DETAIL"]
    assert len(table) == len(shown)


class Odd(UnixCalls):
    """A server whose events are not what ours are."""

    def unary(self, rpc: str, request: Request, *, timeout_s: float | None = None) -> Answer:
        return Answer({"events": [*ODD, '{"time":1e300,"event":["x"],"more":{"a":"\\u001b[2J"}}'], "returned": 9})


ODD = ["", "no json", "[1]", "NaN", '{"time":NaN}', "9" * 5000, "[" * 100_000]


@pytest.mark.parametrize("output", ["json", "table"])
def test_odd_events_are_shown_as_they_are(output: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    args = argparse.Namespace(session_id="s", limit=9, output=output)
    assert show_events(args, Odd("/nowhere")) == 0
    shown = capfdbinary.readouterr().out.decode()
    if output == "json":
        found = json.loads(shown)["events"]
        assert found[:-1] == [{"text": text} for text in ODD]
        assert found[-1]["event"] == ["x"]
    else:
        assert len(shown.splitlines()) == 1 + len(ODD) + 1
        assert "text=no json" in shown
        assert "1e+300" in shown
        assert "\x1b" not in shown


def test_a_log_is_plain_text_and_following_it_ends_with_the_session(
    k8e: Run, session_id: str, environ: dict[str, str]
) -> None:
    plain = k8e("log", session_id)
    assert (plain.returncode, plain.stderr) == (0, b"")
    missing = k8e("log", "sess-none")
    assert (missing.returncode, missing.stdout, b"not found" in missing.stderr) == (1, b"", True)
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "log", session_id, "--follow"]
    k8e("run", "--session-id", session_id, "true")
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()  # it has found the session
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)  # the control: it goes on while the session does
        k8e("destroy", session_id)
        assert process.wait(PATIENCE_S) == 0


def test_a_benchmark_measures_and_leaves_nothing(k8e: Run) -> None:
    before = told(k8e("sessions"))["sessions"]
    done = k8e("benchmark", "--iterations", "2", "--pool-size", "1")
    kinds = told(done)
    assert {"cold_create", "cold_exec", "cold_total", "warm_create", "warm_exec", "lifecycle_total"} <= set(kinds)
    assert b"warm_create" in done.stderr
    assert told(k8e("sessions"))["sessions"] == before
    assert k8e("benchmark", "--iterations", "0").returncode == 1


@pytest.fixture
def live_top(environ: dict[str, str], session_id: str) -> Iterator[Screen]:
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "top", "--interval"]
    with contextlib.closing(Screen([*argv, "0.1"], environ | {"TERM": "dumb"})) as opened:
        opened.wait_for(session_id.encode())
        yield opened


@pytest.mark.parametrize(
    ("keys", "code"),
    [(b"q", 0), (b"x\nQ", 0), (signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)],
    ids=["q", "other keys first", "Ctrl-C", "SIGTERM"],
)
def test_top_is_left_by_a_key_and_the_terminal_is_put_back(
    live_top: Screen, keys: bytes | signal.Signals, code: int
) -> None:
    assert live_top.modes() != live_top.before
    assert int(str(live_top.modes()[3])) & termios.ISIG  # Ctrl-C still interrupts
    live_top.shown = b""
    live_top.wait_for(b"q leaves")  # and goes on while nothing is typed
    if isinstance(keys, bytes):
        live_top.type(keys)
    else:
        live_top.process.send_signal(keys)
    assert live_top.process.wait(PATIENCE_S) == code
    assert live_top.modes() == live_top.before


def test_top_shows_something_at_a_terminal_that_does_not_say_its_size(environ: dict[str, str], session_id: str) -> None:
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "top", "--interval", "0.1"]
    with contextlib.closing(Screen(argv, environ, rows=0, columns=0)) as opened:
        opened.wait_for(session_id.encode())
        opened.type(b"q")
        assert opened.process.wait(PATIENCE_S) == 0


def test_a_shell_is_a_real_terminal_with_its_own_end(screen: Screen) -> None:
    screen.type(b"echo $((6 * 7)); tty > /dev/null && echo on a terminal\n")
    screen.wait_for(b"42")
    assert screen.modes() != screen.before  # raw while it runs
    screen.type(b"exit 7\n")
    assert screen.process.wait(PATIENCE_S) == 7
    assert screen.modes() == screen.before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_shell_that_is_ended_puts_the_terminal_back(screen: Screen, number: signal.Signals) -> None:
    screen.type(b"echo be''gun\n")
    screen.wait_for(b"begun")
    screen.process.send_signal(number)
    assert screen.process.wait(PATIENCE_S) == 128 + number
    assert screen.modes() == screen.before


def test_without_a_session_a_shell_is_in_the_shared_one(k8e: Run, tmp_path: Path) -> None:
    done = k8e("shell", stdin=b"echo kept > file; exit 5\n")
    assert done.returncode == 5
    (state,) = tmp_path.glob(".k8e/sandbox/default/state.json")
    assert told(k8e("run", "cat file"))["stdout"] == "kept\n"
    assert k8e("shell", "--", "sh", "-c", "exit 6").returncode == 6
    assert k8e("shell", str(json.loads(state.read_text())["session_id"]), "--", "cat", "file").stdout.split() == [
        b"kept"
    ]
    assert told(k8e("run", "--tenant", "team", "echo theirs > file"))["exit_code"] == 0
    assert k8e("shell", "--tenant", "team", "--", "cat", "file").stdout.split() == [b"theirs"]
    told(k8e("destroy", str(json.loads(state.read_text())["session_id"])))
    again = k8e("shell", "--", "cat", "file")
    assert again.returncode == 1  # another session, which has no such file


def test_input_that_ends_is_the_end_of_the_shell(k8e: Run, session_id: str) -> None:
    done = k8e("shell", session_id, stdin=b"echo pi''ped; exit 4\n")
    assert b"piped" in done.stdout
    assert done.returncode == 4
    assert k8e("shell", "sess-none").returncode == 1


def test_a_binary_file_is_not_poured_into_a_terminal(k8e: Run, environ: dict[str, str], session_id: str) -> None:
    for content, part in ((b"\x7fELF\0\0\0", b"--raw > FILE"), (b"caf\xe9\n", rb"caf\xe9")):
        k8e("write", session_id, "f", stdin=content)
        argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "read", "--raw", session_id, "f"]
        with contextlib.closing(Screen(argv, environ)) as opened:
            opened.wait_for(part)
        assert b"ELF" not in opened.shown


def test_the_catalogue_has_every_command_with_its_flags(k8e: Run) -> None:
    shown = told(k8e("catalog"))
    assert shown["catalog_version"] == 1
    commands = shown["commands"]
    assert isinstance(commands, list)
    by_name = {each["name"]: each for each in commands}
    assert {"run", "cp", "profile add", "workspaces delete"} <= set(by_name)
    assert "--git-repo" in {flag["name"] for flag in by_name["run"]["flags"]}
    assert by_name["read"]["usage"] == "read <session_id> <path>"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("k8e san", {"sandbox", "sandbox-apikey", "sandbox-install-skill", "sandbox-mcp"}),
        ("k8e sandbox all", {"allow-hosts"}),
        ("k8e sandbox allow-hosts s --def", {"--defaults"}),
        ("k8e sandbox ru", {"run", "runs"}),
        ("k8e sandbox log --ta", {"--tail"}),
        ("k8e sandbox run --lan", {"--lang"}),
        ("k8e sandbox --endpoint h:1 profile re", {"remove"}),
        ("k8e sandbox create --man", {"--manifest"}),
        ("k8e-sandbox ap", {"approve", "approvals"}),
        ("/usr/bin/k8e-sandbox-cli workspaces ", {"list", "delete", "--help"}),
        ("k8e sandbox run --manifest {home}/age", {"{home}/agent.yaml", "{home}/agents"}),
    ],
)
def test_bash_completes_what_the_grammar_has(typed: str, expected: set[str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "agents").mkdir(parents=True)
    (home / "agent.yaml").touch()
    (home / "other.yaml").touch()
    typed = typed.format(home=home)
    (tmp_path / "script").write_text(script("bash"))
    code = f"""
source {tmp_path}/script
words=({typed}{" ''" if typed.endswith(" ") else ""})
COMP_WORDS=("${{words[@]}}") COMP_CWORD=$((${{#words[@]}} - 1))
_k8e
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert set(done.stdout.split()) == {word.format(home=home) for word in expected}


def test_the_other_shells_have_the_same_words() -> None:
    every = {child.name for child in tree().children} | {flag for flag, _, _ in tree().flags}
    for shell in ("zsh", "fish"):
        text = script(shell)
        assert all(word.lstrip("-") in text for word in every)
    assert script("zsh").startswith("#compdef k8e")
    assert "mapfile" not in script("zsh")
