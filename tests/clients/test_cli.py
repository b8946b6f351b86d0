"""`k8e` as people and programs use it: what is printed where, and how it ends, on the real server."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from k8e.client import SandboxClient
from tests.support.commands import K8E, Run, told
from tests.support.places import TOOLS_DIR
from tests.support.prepared_images import use_prepared_images
from tests.support.servers import Server

PATIENCE_S = 60.0
KEYS = ["stdout", "stderr", "exit_code", "session_id", "status", "duration_ms", "truncated", "language"]
SLEEPER = "setsid sleep 5001 & (setsid sh -c 'sleep 5002 &' &); sleep 5003"


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """A zombie, whose parent is nobody of ours, is not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def shared_session(home: Path) -> str:
    state = json.loads((home / ".k8e/sandbox/default/state.json").read_text())
    return str(state["session_id"])


@pytest.fixture
def session(client: SandboxClient, tidy: None) -> str:
    return client.create_session()


@pytest.fixture
def sleepers(client: SandboxClient) -> Callable[[str], int]:
    """How many `sleep`s run in a session."""
    return lambda sid: [process.comm for process in client.processes(sid)].count("sleep")


# --- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [[], ["--raw"]], ids=["json", "raw"])
def test_run_ends_as_the_program_did(k8e: Run, session: str, raw: list[str]) -> None:
    ends = {"exit 7": 7, "true": 0, "kill -9 $$": 137, "kill -TERM $$": 143, "no-such-program": 127, "sleep 60": 124}
    for code, expected in ends.items():
        limit = "1" if code == "sleep 60" else "30"
        done = k8e("sandbox", "run", *raw, "--session-id", session, "--timeout", limit, code)
        assert (code, done.returncode) == (code, expected)


def test_the_json_says_why_it_ended(k8e: Run, session: str) -> None:
    late = told(k8e("sandbox", "run", "--session-id", session, "--timeout", "5", "echo begun; sleep 60"))
    assert (late["status"], late["exit_code"], late["stdout"]) == ("timed_out", 124, "begun\n")
    dead = told(
        k8e("sandbox", "run", "--session-id", session, "--lang", "python", "import os; os.kill(os.getpid(), 9)")
    )
    assert (dead["status"], dead["exit_code"]) == ("completed", 137)


@pytest.mark.parametrize(
    ("words", "code", "more"),
    [
        (["run", "--session-id", "sess-none", "true"], 1, set()),
        (["run", "--lang", "cobol", "x"], 1, set()),
        (["run", "--timeout", "-1", "x"], 1, set()),
        (["read", "sess-none", "f"], 1, set()),
        (["write", "sess-none", "f"], 1, {"ok"}),
        (["destroy", "sess-none"], 1, {"ok"}),
        (["list", "sess-none"], 1, set()),
        (["poll", "run-none"], 1, set()),
        (["subagent", "sess-none"], 1, set()),
        (["create", "--runtime", "nonsense"], 1, set()),
        (["create", "--runtime", "kata"], 2, set()),
        (["--endpoint", "127.0.0.1:1", "run", "true"], 2, set()),
        (["--endpoint", "127.0.0.1:1", "destroy", "x"], 2, {"ok"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_our_own_failures_say_so_and_have_their_exit_codes(
    k8e: Run, words: list[str], code: int, more: set[str]
) -> None:
    done = k8e("sandbox", *words)
    assert (done.returncode, set(told(done))) == (code, {"error", "detail"} | more)


def test_a_missing_file_is_not_found(k8e: Run, session: str) -> None:
    done = k8e("sandbox", "read", session, "nothing")
    assert (done.returncode, told(done)["error"]) == (1, "not found")


def test_our_failures_stay_out_of_raw_output(k8e: Run, session: str) -> None:
    for words in (["read", "--raw", session, "nothing"], ["run", "--raw", "--session-id", "sess-none", "true"]):
        done = k8e("sandbox", *words)
        assert (done.returncode, done.stdout) == (1, b"")
        assert json.loads(done.stderr)["error"] == "not found"


# --- programs --------------------------------------------------------------------------------------------------------


def test_run_prints_one_line_with_the_known_keys(k8e: Run, session: str) -> None:
    value = told(k8e("sandbox", "run", "--session-id", session, "--lang", "python", "print('hello')"))
    assert list(value) == KEYS
    assert (value["stdout"], value["stderr"], value["language"]) == ("hello\n", "", "python")
    assert (value["session_id"], value["truncated"]) == (session, False)


@pytest.mark.parametrize(
    ("lang", "program"),
    [
        ("bash", b"printf '%s' '$HOME `id` \"q\" \\ \xff'\"\n\ttail \""),
        ("python", b"import sys\nsys.stdout.buffer.write(b'''$HOME `id` \"q\" \\\\ \\xff\n\ttail ''')"),
    ],
)
def test_a_program_arrives_byte_for_byte(k8e: Run, session: str, lang: str, program: bytes) -> None:
    words = ["sandbox", "run", "--raw", "--session-id", session, "--lang", lang]
    expected = b'$HOME `id` "q" \\ \xff\n\ttail '
    assert k8e(*words, program).stdout == expected
    assert k8e(*words, stdin=program).stdout == expected


def test_raw_streams_are_apart_and_live(client: SandboxClient, environ: dict[str, str], session: str) -> None:
    code = "echo one; echo oops >&2; until [ -e go ]; do sleep 0.02; done; echo two; exit 3"
    argv = [str(K8E), "sandbox", "run", "--raw", "--session-id", session, code]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.readline(), process.stderr.readline()) == (b"one\n", b"oops\n")
        assert process.poll() is None
        client.write_file(session, "go", "")
        assert process.communicate(timeout=PATIENCE_S) == (b"two\n", b"")
    assert process.returncode == 3


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)], ids=lambda n: str(int(n))
)
@pytest.mark.parametrize("raw", [[], ["--raw"]], ids=["json", "raw"])
def test_a_command_that_goes_away_leaves_nothing_running_inside(
    environ: dict[str, str],
    session: str,
    sleepers: Callable[[str], int],
    raw: list[str],
    number: signal.Signals,
    code: int,
) -> None:
    argv = [str(K8E), "sandbox", "run", *raw, "--session-id", session, SLEEPER]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(lambda: sleepers(session) == 3)
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    wait_until(lambda: sleepers(session) == 0)


def test_a_background_run_is_polled_and_killed(k8e: Run, session: str) -> None:
    words = ["sandbox", "run", "--background", "--session-id", session]
    short = told(k8e(*words, "echo out; echo err >&2; exit 5"))
    assert (list(short), short["status"]) == (["run_id", "status", "session_id"], "started")
    long = str(told(k8e(*words, "echo begun; exec sleep 600"))["run_id"])
    wait_until(lambda: told(k8e("sandbox", "poll", str(short["run_id"])))["status"] == "completed")
    ended = told(k8e("sandbox", "poll", str(short["run_id"])))
    assert (ended["stdout"], ended["stderr"], ended["exit_code"]) == ("out\n", "err\n", 5)
    wait_until(lambda: told(k8e("sandbox", "poll", long))["stdout"] == "begun\n")
    assert told(k8e("sandbox", "kill-run", long))["ok"] is True
    wait_until(lambda: told(k8e("sandbox", "poll", long))["exit_code"] == 137)


# --- sessions --------------------------------------------------------------------------------------------------------


def test_ten_processes_at_once_make_one_session(k8e: Run, tmp_path: Path) -> None:
    with ThreadPoolExecutor(10) as threads:
        done = list(threads.map(lambda number: k8e("sandbox", "run", f"echo {number}"), range(10)))
    assert [told(each)["stdout"] for each in done] == [f"{number}\n" for number in range(10)]
    assert {told(each)["session_id"] for each in done} == {shared_session(tmp_path)}


@pytest.mark.parametrize("raw", [[], ["--raw"]], ids=["json", "raw"])
def test_a_shared_session_that_is_gone_is_made_again_once(
    k8e: Run, client: SandboxClient, tmp_path: Path, raw: list[str]
) -> None:
    k8e("sandbox", "run", "true")
    gone = shared_session(tmp_path)
    client.destroy_session(gone)  # not through the command, which would clear its state
    done = k8e("sandbox", "run", *raw, "echo renewed")
    assert (done.returncode, b"renewed" in done.stdout) == (0, True)
    assert b"new session" in done.stderr
    assert shared_session(tmp_path) != gone


def test_a_session_that_was_named_is_never_replaced(k8e: Run, client: SandboxClient, session: str) -> None:
    client.destroy_session(session)
    assert k8e("sandbox", "run", "--session-id", session, "true").returncode == 1


def test_a_tenants_files_are_found_again_until_they_are_deleted(k8e: Run, client: SandboxClient) -> None:
    first = str(told(k8e("sandbox", "run", "--tenant", "team", "echo kept > file"))["session_id"])
    assert told(k8e("sandbox", "destroy", first)) == {"ok": True}
    again = told(k8e("sandbox", "run", "--tenant", "team", "cat file"))
    assert again["stdout"] == "kept\n"
    k8e("sandbox", "destroy", str(again["session_id"]))
    listed = told(k8e("sandbox", "workspaces", "list"))["workspaces"]
    assert isinstance(listed, list)
    assert "team" in {each["tenant_id"] for each in listed}
    assert told(k8e("sandbox", "workspaces", "delete", "team"))["ok"] is True
    missing = k8e("sandbox", "workspaces", "delete", "team")
    assert (missing.returncode, told(missing)["ok"]) == (1, False)


def test_files_go_in_and_out_byte_for_byte_and_are_listed(k8e: Run, session: str) -> None:
    content = bytes(range(256)) * 16384
    assert told(k8e("sandbox", "write", session, "deep/a b%#.bin", stdin=content))["ok"] is True
    assert k8e("sandbox", "read", "--raw", session, "deep/a b%#.bin").stdout == content
    k8e("sandbox", "write", session, "g", stdin=b"a")
    k8e("sandbox", "write", session, "g", "--mode", "a", stdin=b"b")
    assert told(k8e("sandbox", "read", session, "g")) == {"content": "ab", "path": "g"}
    files = told(k8e("sandbox", "list", session))["files"]
    assert isinstance(files, list)
    assert {each["path"] for each in files} >= {"/workspace/deep/a b%#.bin", "/workspace/g"}
    assert told(k8e("sandbox", "list", session, "--since", str(int(time.time()) + 3600)))["files"] == []


def test_a_session_of_ones_own_from_create_to_destroy(k8e: Run) -> None:
    words = ["--env", "A=1", "--processes", "64", "--runtime", "container"]
    made = str(told(k8e("sandbox", "create", *words))["session_id"])
    assert told(k8e("sandbox", "run", "--session-id", made, "echo $A"))["stdout"] == "1\n"
    shown = told(k8e("sandbox", "get", made))
    assert (shown["env_keys"], shown["runtime_class"], shown["phase"]) == (["A"], "container", "Active")
    child = told(k8e("sandbox", "subagent", made))["session_id"]
    listed = told(k8e("sandbox", "sessions"))["sessions"]
    assert isinstance(listed, list)
    assert {made, child} <= {each["session_id"] for each in listed}
    assert told(k8e("sandbox", "destroy", made)) == {"ok": True}
    assert k8e("sandbox", "get", str(child)).returncode == 1


def test_the_default_list_of_hosts_comes_back(k8e: Run, session: str) -> None:
    before = told(k8e("sandbox", "allow-hosts", session))
    assert before["allowed_hosts"]
    assert told(k8e("sandbox", "allow-hosts", session, "a.example"))["allowed_hosts"] == ["a.example"]
    assert told(k8e("sandbox", "allow-hosts", session, "--defaults")) == before


# --- the server ------------------------------------------------------------------------------------------------------


def test_status_shows_the_server_and_the_shared_session(k8e: Run, server: Server, tmp_path: Path) -> None:
    k8e("sandbox", "run", "true")
    assert told(k8e("sandbox", "status")) == {
        "available": True,
        "session_id": shared_session(tmp_path),
        "tenant_id": "",
    }
    shown = told(k8e("server", "status"))
    assert (shown["pid"], shown["data_dir"]) == (server.pid, str(server.data_dir))
    assert set(shown) >= {"pid", "data_dir", "doors", "runtimes", "pool", "sessions"}


@pytest.mark.parametrize("group", ["sandbox", "server"])
def test_status_of_nothing_is_unreachable_and_starts_nothing(k8e: Run, tmp_path: Path, group: str) -> None:
    empty = tmp_path / "empty"
    done = k8e(group, "status", K8E_DATA_DIR=str(empty), K8E_SANDBOX_ENDPOINT="127.0.0.1:1")
    assert (done.returncode, empty.exists()) == (2, False)


@pytest.fixture
def private(environ: dict[str, str], data_dir: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody whose server does not run yet."""
    use_prepared_images(data_dir)
    chosen = {
        "K8E_DATA_DIR": str(data_dir),
        "K8E_SANDBOX_TOOLS_DIR": str(TOOLS_DIR),
        "K8E_SANDBOX_LISTEN": "127.0.0.1:0",
        "K8E_SANDBOX_POOL_MIN": "0",
    }
    yield chosen
    argv = [str(K8E), "server", "stop", "--destroy"]
    if (data_dir / "server" / "server.json").exists() or any(data_dir.glob("sandboxes/*")):
        subprocess.run(argv, env=environ | chosen, capture_output=True, check=False, timeout=60)


def test_a_server_is_started_by_need_kept_by_a_stop_and_emptied_by_destroy(
    k8e: Run, private: dict[str, str], data_dir: Path, tmp_path: Path
) -> None:
    begun = k8e("sandbox", "run", "echo kept > file", **private)
    assert begun.returncode == 0, begun.stderr
    session = told(begun)["session_id"]
    pid = int(str(told(k8e("server", "status", **private))["pid"]))
    assert told(k8e("server", "stop", **private)) == {"ok": True}
    wait_until(lambda: not is_alive(pid))
    assert k8e("sandbox", "status", **private).returncode == 2
    again = told(k8e("sandbox", "run", "cat file", **private))
    assert (again["stdout"], again["session_id"]) == ("kept\n", session)
    assert told(k8e("server", "stop", "--destroy", **private)) == {"ok": True}
    assert list((data_dir / "sandboxes").iterdir()) == []


def test_without_root_it_says_what_root_would_install_and_installs_nothing(
    environ: dict[str, str], tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere"
    argv = ["unshare", "--user", str(K8E), "sandbox", "run", "true"]  # a namespace without a map: nobody in particular
    done = subprocess.run(argv, env=environ | {"K8E_DATA_DIR": str(nowhere)}, capture_output=True, check=False)
    detail = str(told(done)["detail"])
    assert (done.returncode, nowhere.exists()) == (2, False)
    for part in ("needs root", "gVisor is not set up", "found on PATH", "tsx", "as root"):
        assert part in detail
        assert part in done.stderr.decode()


def test_only_the_servers_own_user_stops_it(environ: dict[str, str], server: Server) -> None:
    argv = ["setpriv", "--reuid", "65534", "--clear-groups", "--", str(K8E), "server", "stop"]
    done = subprocess.run(argv, env=environ, capture_output=True, check=False)
    assert (done.returncode, told(done)["error"]) == (2, "not allowed"), done.stderr
    assert is_alive(server.pid)
