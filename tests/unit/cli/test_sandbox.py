"""`k8e sandbox …` as whole processes: what is printed, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import inside

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
PATIENCE_S = 60.0


def told(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    lines = done.stdout.splitlines()
    assert len(lines) == 1, (done.stdout, done.stderr)
    value = json.loads(lines[0])
    assert isinstance(value, dict)
    return value


def test_run_prints_one_line_with_the_known_keys(k8e: Run) -> None:
    done = k8e("run", "--lang", "python", "print('hello')")
    value = told(done)
    assert list(value) == [
        "stdout",
        "stderr",
        "exit_code",
        "session_id",
        "status",
        "duration_ms",
        "truncated",
        "language",
    ]
    assert (value["stdout"], value["exit_code"], value["status"]) == ("hello\n", 0, "completed")
    assert (done.returncode, value["language"]) == (0, "python")


@pytest.mark.parametrize("raw", [[], ["--raw"]])
@pytest.mark.parametrize(
    ("code", "limit", "expected"),
    [("exit 7", "60", 7), ("kill -9 $$", "60", 137), ("sleep 60", "0.5", 124)],
    ids=["exit", "signal", "time-out"],
)
def test_run_exits_as_the_command_did(k8e: Run, raw: list[str], code: str, limit: str, expected: int) -> None:
    assert k8e("run", *raw, "--timeout", limit, code).returncode == expected


def test_who_ran_out_of_time_is_told_how_to_have_more(k8e: Run) -> None:
    late = told(k8e("run", "--timeout", "0.5", "sleep 60"))
    assert "--timeout" in str(late["detail"])
    assert "--background" in str(late["detail"])
    assert b"--timeout" in k8e("run", "--raw", "--timeout", "0.5", "sleep 60").stderr
    assert "detail" not in told(k8e("run", "exit 124"))  # the control: its own code


def test_raw_output_goes_where_it_belongs(k8e: Run) -> None:
    done = k8e("run", "--raw", r"printf '\377out'; printf err >&2")
    assert (done.stdout, done.stderr) == (b"\xffout", b"err")


def test_code_comes_byte_for_byte_from_the_argument_or_standard_input(k8e: Run) -> None:
    code = b"printf '%s' '$HOME `id` \"q\" \\ \xff'"
    assert k8e("run", "--raw", code).stdout == b'$HOME `id` "q" \\ \xff'
    assert k8e("run", "--raw", stdin=code).stdout == b'$HOME `id` "q" \\ \xff'


def test_a_program_that_is_too_long_for_a_message_is_bad_input_and_says_what_to_do(k8e: Run) -> None:
    done = k8e("run", stdin=b"#" * (33 * 2**20))
    assert (done.returncode, told(done)["error"]) == (1, "invalid request")
    assert "k8e sandbox write" in str(told(done)["detail"])
    assert k8e("run", "--raw", stdin=b"#" * 2**19 + b"\necho hi").stdout == b"hi\n"  # the control


def test_runs_share_a_session_until_it_is_gone_and_then_get_a_new_one(k8e: Run, tmp_path: Path) -> None:
    first = told(k8e("run", "echo kept > f"))["session_id"]
    again = told(k8e("run", "cat f"))
    assert (again["session_id"], again["stdout"]) == (first, "kept\n")
    state = json.loads((tmp_path / ".k8e/sandbox/default/state.json").read_text())
    assert (state["session_id"], state["phase"]) == (first, "active")
    state_text = (tmp_path / ".k8e/sandbox/default/state.json").read_text()
    assert told(k8e("destroy", str(first))) == {"ok": True}
    (tmp_path / ".k8e/sandbox/default/state.json").write_text(state_text)  # as if it had expired by itself
    renewed = k8e("run", "echo new")
    assert told(renewed)["stdout"] == "new\n"
    assert told(renewed)["session_id"] != first


def test_destroying_the_shared_session_clears_its_state(k8e: Run, tmp_path: Path) -> None:
    session_id = told(k8e("run", "true", "--tenant", "team"))["session_id"]
    assert (tmp_path / ".k8e/sandbox/team/state.json").exists()
    k8e("destroy", str(session_id))
    assert not (tmp_path / ".k8e/sandbox/team/state.json").exists()


def test_ten_processes_at_once_make_one_session(k8e: Run) -> None:
    with ThreadPoolExecutor(10) as pool:
        sessions = [told(done)["session_id"] for done in pool.map(lambda _: k8e("run", "true"), range(10))]
    assert len(set(sessions)) == 1


def test_a_background_run_is_polled_and_killed(k8e: Run) -> None:
    begun = told(k8e("run", "--background", "echo begun; exec sleep 60"))
    assert (list(begun), begun["status"]) == (["run_id", "status", "session_id"], "started")
    run_id = str(begun["run_id"])
    deadline = time.monotonic() + PATIENCE_S
    while not (polled := told(k8e("poll", run_id)))["stdout"]:
        assert time.monotonic() < deadline
    assert list(polled) == ["run_id", "status", "stdout", "stderr", "exit_code", "duration_ms", "truncated"]
    assert (polled["status"], polled["stdout"]) == ("running", "begun\n")
    assert told(k8e("kill-run", run_id))["ok"] is True


def runs_of(k8e: Run, *session: str) -> list[dict[str, object]]:
    found = told(k8e("runs", *session))["runs"]
    assert isinstance(found, list)
    return found


def test_runs_are_listed_and_none_makes_no_session(k8e: Run, tmp_path: Path) -> None:
    assert told(k8e("runs")) == {"runs": []}
    assert not (tmp_path / ".k8e/sandbox/default/state.json").exists()
    first = str(told(k8e("run", "--background", "echo out; exit 5"))["run_id"])
    deadline = time.monotonic() + PATIENCE_S
    while told(k8e("poll", first))["status"] == "running":
        assert time.monotonic() < deadline
    second = told(k8e("run", "--background", "exec sleep 60 # \x1b[2J"))
    ended, running = rows = runs_of(k8e)
    assert (ended["run_id"], ended["status"], ended["exit_code"]) == (first, "completed", 5)
    assert (ended["command"], ended["session_id"]) == ("bash: echo out; exit 5", second["session_id"])
    assert (running["run_id"], running["status"], running["exit_code"]) == (second["run_id"], "running", None)
    assert float(str(ended["started_at"])) <= float(str(running["started_at"])) <= time.time()
    assert runs_of(k8e, str(second["session_id"]))[0] == rows[0]
    table = k8e("runs", "--output", "table")
    heading, _, line = table.stdout.decode().splitlines()
    assert heading.split() == ["RUN_ID", "STATUS", "EXIT_CODE", "STARTED_AT", "DURATION_MS", "COMMAND"]
    assert line.endswith(r"bash: exec sleep 60 # \x1b[2J")
    assert f"k8e sandbox poll {second['run_id']}" in table.stderr.decode()
    assert k8e("runs", "sess-none").returncode == 1
    k8e("kill-run", str(second["run_id"]))


def test_a_session_of_ones_own_from_create_to_destroy(k8e: Run) -> None:
    made = told(k8e("create", "--env", "A=1", "--allowed-hosts", "a.example,b.example", "--cpus", "2"))
    session_id = str(made["session_id"])
    assert told(k8e("run", "--session-id", session_id, "echo $A"))["stdout"] == "1\n"
    shown = told(k8e("get", session_id))
    assert (shown["env_keys"], shown["allowed_hosts"], shown["phase"]) == (
        ["A"],
        ["a.example", "b.example"],
        "Active",
    )
    listed = told(k8e("sessions"))["sessions"]
    assert isinstance(listed, list)
    assert session_id in {each["session_id"] for each in listed}
    child = told(k8e("subagent", session_id))["session_id"]
    assert child != session_id
    assert told(k8e("destroy", session_id)) == {"ok": True}


def test_files_are_written_read_and_listed_byte_for_byte(k8e: Run) -> None:
    session_id = str(told(k8e("create"))["session_id"])
    content = bytes(range(256)) * 8192
    assert told(k8e("write", session_id, "/workspace/f", stdin=content)) == {"ok": True, "path": "/workspace/f"}
    assert k8e("read", "--raw", session_id, "/workspace/f").stdout == content
    assert told(k8e("write", session_id, "g", stdin=b"a"))["ok"]
    assert told(k8e("write", session_id, "g", "--mode", "a", stdin=b"b"))["ok"]
    assert told(k8e("read", session_id, "g")) == {"content": "ab", "path": "g"}
    files = told(k8e("list", session_id))["files"]
    assert isinstance(files, list)
    assert {(each["path"], each["type"]) for each in files} == {("/workspace/f", "file"), ("/workspace/g", "file")}


BINARY = {
    "not UTF-8": b"caf\xe9\n",
    "a NUL": b"text\0text",
    "cut off": "\u00e9".encode()[:1],
    "late": b"a" * 600_000 + b"\xff",
}


@pytest.mark.parametrize("content", BINARY.values(), ids=BINARY)
def test_a_binary_file_is_said_to_be_one_and_how_to_read_it(k8e: Run, content: bytes) -> None:
    session_id = str(told(k8e("create"))["session_id"])
    k8e("write", session_id, "f", stdin=content)
    done = k8e("read", session_id, "f")
    assert (done.returncode, told(done)["error"]) == (1, "invalid request")
    assert "f: is binary" in str(told(done)["detail"])
    assert "--raw" in str(told(done)["detail"])
    assert k8e("read", "--raw", session_id, "f").stdout == content


def test_text_of_any_language_is_read(k8e: Run) -> None:
    session_id = str(told(k8e("create"))["session_id"])
    text = "caf\u00e9 \u4e2d\u6587 \U0001f600\t\x1b\n" * 40_000  # characters are cut by the pieces in which it comes
    k8e("write", session_id, "f", stdin=text.encode())
    assert told(k8e("read", session_id, "f")) == {"content": text, "path": "f"}


@pytest.mark.parametrize(
    ("words", "code", "has_ok"),
    [
        (["read", "sess-none", "f"], 1, False),
        (["write", "sess-none", "f"], 1, True),
        (["destroy", "sess-none"], 1, True),
        (["run", "--session-id", "sess-none", "true"], 1, False),
        (["run", "--lang", "cobol", "x"], 1, False),
        (["poll", "run-none"], 1, False),
        (["create", "--env", "nonsense"], 1, False),
        (["create", "--label", "nonsense"], 1, False),
        (["create", "--label", "a b=c"], 1, False),
        (["label", "sess-none", "a=b"], 1, False),
        (["label", "sess-none", "a"], 1, False),
        (["label", "sess-none", "a=b", "a=c"], 1, False),
        (["--endpoint", "127.0.0.1:1", "sessions"], 2, False),
        (["--endpoint", "127.0.0.1:1", "destroy", "x"], 2, True),
    ],
)
def test_our_own_failures_say_so_and_have_their_exit_codes(k8e: Run, words: list[str], code: int, has_ok: bool) -> None:
    done = k8e(*words)
    value = told(done)
    assert done.returncode == code
    assert set(value) == {"error", "detail"} | ({"ok"} if has_ok else set())


def test_sessions_are_labelled_and_found_by_their_labels(k8e: Run) -> None:
    def found(*flags: str) -> list[str]:
        sessions = told(k8e("sessions", *flags))["sessions"]
        assert isinstance(sessions, list)
        return [str(each["session_id"]) for each in sessions]

    one = str(told(k8e("create", "--label", "batch=7", "--label", "note=two words"))["session_id"])
    two = str(told(k8e("create", "--label", "batch=8"))["session_id"])
    assert told(k8e("get", one))["labels"] == {"batch": "7", "note": "two words"}
    assert found("--label", "batch") == [one, two]
    assert found("--label", "batch=7", "--label", "note") == [one]
    assert found("--label", "batch=9") == []
    changed = told(k8e("label", one, "batch=8", "note-", "ends=so-", "never-had-"))
    assert changed == {"session_id": one, "labels": {"batch": "8", "ends": "so-"}}
    assert told(k8e("label", one)) == changed
    assert found("--label", "batch=8") == [one, two]
    for flags, column in (([], []), (["--show-labels"], ["LABELS"])):
        heading, *rows = k8e("sessions", "--label", "ends", "--output", "table", *flags).stdout.decode().splitlines()
        assert heading.split()[7:] == column
        assert [row.split()[0] for row in rows] == [one]
    assert {"batch=8", "ends=so-"} == set(rows[0].split()[-1].split(","))


def test_status_tells_what_is_up_and_never_starts_a_server(k8e: Run, tmp_path: Path) -> None:
    session_id = told(k8e("run", "true"))["session_id"]
    up = k8e("status")
    assert (up.returncode, told(up)) == (0, {"available": True, "session_id": session_id, "tenant_id": ""})
    down = k8e("status", K8E_DATA_DIR=str(tmp_path / "empty"), K8E_SANDBOX_ENDPOINT="127.0.0.1:1")
    assert (down.returncode, told(down)["available"]) == (2, False)
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_an_interrupt_stops_the_command_inside(environ: dict[str, str], tmp_path: Path, raw: list[str]) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "run", *raw, f"echo $$ > {fifo}; exec sleep 60"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        pid = int(fifo.read_text())  # blocks until the command is up
        assert inside.exists(pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    inside.wait_gone(pid)


def test_the_environment_names_a_tenant_for_create_until_a_flag_does(k8e: Run) -> None:
    for flag, expected in (([], "from-env"), (["--tenant", "given"], "given")):
        made = told(k8e("create", *flag, K8E_SANDBOX_TENANT="from-env"))
        assert told(k8e("get", str(made["session_id"])))["tenant_id"] == expected


def test_the_short_names_examine_this_machine_too(k8e: Run) -> None:
    done = k8e("doctor", "--help")
    assert (done.returncode, b"--fix" in done.stdout) == (0, True)


@pytest.mark.parametrize("name", ["k8e-sandbox", "k8e-sandbox-cli"])
@pytest.mark.parametrize(
    "extra", [[], ["sandbox"], ["--owner", "sandbox", "sandbox"], ["--profile=sandbox", "sandbox"]]
)
def test_the_short_names_work_with_and_without_the_extra_word(
    environ: dict[str, str], name: str, extra: list[str]
) -> None:
    code = f"from k8e.cli.main import main; raise SystemExit(main(prog={name!r}))"
    argv = [sys.executable, "-c", code, *extra, "run", "--raw", "echo hi"]
    profiles = Path(environ["HOME"]) / "profiles.yaml"
    profiles.write_text("profiles: {sandbox: {device_name: here}}")
    environ["K8E_SANDBOX_CONFIG"] = str(profiles)
    assert subprocess.run(argv, env=environ, capture_output=True, check=True).stdout == b"hi\n"


@pytest.mark.parametrize(
    "words",
    [
        ["sandbox", "run", "--raw", "seq 100000"],
        ["sandbox", "catalog"],
        ["sandbox", "completion", "bash"],
        ["sandbox", "profile", "list"],
        ["server", "status"],
        ["audit", "verify"],
    ],
)
def test_a_reader_that_has_gone_ends_every_command_quietly(environ: dict[str, str], words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "k8e.cli.main", *words]
    done = subprocess.run(argv, env=environ, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("closed", [">&-", "| true", "2>&-"])
def test_a_reader_that_goes_away_is_no_drama(environ: dict[str, str], closed: str) -> None:
    line = f"{sys.executable} -m k8e.cli.main sandbox run --raw 'seq 100000' {closed}"
    done = subprocess.run(["bash", "-c", line], env=environ, capture_output=True, timeout=60, check=False)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
