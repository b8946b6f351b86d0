"""`k8e sandbox-mcp` as a whole process, against a door over the real engine on bare sandboxes: what it reads, writes and survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from k8e.cli.mcp_http import address
from k8e.client.errors import InvalidRequest
from tests.support.door import server_process

Done = subprocess.CompletedProcess[bytes]
K8e = Callable[..., Done]

PATIENCE_S = 60.0
SLEEP = f"sleep 9{os.getpid()}"
"""Nobody else's on this machine: another run of these tests may be under way."""
HEAVY = {"asyncio", "grpc", "google", "dataclasses", "subprocess", "mcp", "mcp_types", "pydantic", "starlette", "yaml"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def call(number: int, name: str, **arguments: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


def lines(*messages: object) -> bytes:
    return b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in messages)


def told(done: Done) -> dict[Any, Any]:
    """Answers by id: nothing but JSON-RPC is on standard output."""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(each["jsonrpc"] == "2.0" for each in found)
    return {each.get("id"): each for each in found}


@pytest.fixture(params=["unix", "grpc"])
def mcp(request: pytest.FixtureRequest, server: Path, environ: dict[str, str]) -> K8e:
    """`k8e sandbox-mcp …` to its end, over each way to the server."""
    chosen = dict(environ)
    if request.param == "grpc":
        doors = json.loads((server / "server" / "server.json").read_text())["doors"]
        chosen["K8E_SANDBOX_ENDPOINT"] = doors["grpc"]

    def run(stdin: bytes, *words: str, **extra: str) -> Done:
        argv = [sys.executable, "-m", "k8e.cli.main", "sandbox-mcp", *words]
        return subprocess.run(argv, input=stdin, capture_output=True, env=chosen | extra, timeout=60, check=False)

    return run


def test_one_line_is_answered_and_then_it_ends(mcp: K8e) -> None:
    done = mcp(lines(INITIALIZE))
    assert (done.returncode, done.stderr) == (0, b"")
    assert told(done)[1]["result"]["protocolVersion"] == "2024-11-05"


def test_no_line_at_all_is_no_mistake(mcp: K8e) -> None:
    done = mcp(b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_what_is_under_way_at_the_end_of_the_input_is_answered(mcp: K8e) -> None:
    slow = call(2, "sandbox_run", code="sleep 0.5; echo late")
    quick = call(3, "sandbox_run", code="echo early")
    answers = told(mcp(lines(INITIALIZE, INITIALIZED, slow, quick)))
    assert answers[2]["result"]["structuredContent"]["stdout"] == "late\n"
    assert answers[3]["result"]["structuredContent"]["stdout"] == "early\n"


def test_the_last_line_needs_no_newline(mcp: K8e) -> None:
    assert 1 in told(mcp(lines(INITIALIZE).rstrip(b"\n")))


def test_a_line_that_is_no_message_is_answered_and_it_goes_on(mcp: K8e) -> None:
    answers = told(mcp(lines(b"nonsense\n", b"\xff\xfe\n", b"\n", INITIALIZE)))
    assert answers[None]["error"]["code"] == -32700
    assert 1 in answers


def test_a_large_line_goes_through_and_a_larger_one_is_refused_by_its_id(mcp: K8e) -> None:
    large = call(2, "sandbox_status", ignored="x" * 20_000_000)
    larger = call(3, "sandbox_status", ignored="x" * 51_000_000)
    answers = told(mcp(lines(INITIALIZE, INITIALIZED, large, larger, call(4, "sandbox_status"))))
    assert "result" in answers[2]
    assert answers[3]["error"]["code"] == -32600
    assert "result" in answers[4]


def test_the_way_to_this_machines_server_loads_nothing_heavy(server: Path, environ: dict[str, str]) -> None:
    program = (
        "import sys\nfrom k8e.cli.main import main\ncode = main(['sandbox-mcp'])\n"
        f"print(code, sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, input=lines(INITIALIZE), capture_output=True, env=environ, timeout=60, check=False)
    assert done.stderr == b"0 []\n"


def test_a_server_that_refuses_us_is_said_on_standard_error(mcp: K8e) -> None:
    done = mcp(lines(INITIALIZE), "--apikey", "nobodys")
    assert done.returncode == 2
    assert b"API key" in done.stderr


def test_no_server_at_all_is_said_on_standard_error(mcp: K8e, tmp_path: Path) -> None:
    done = mcp(lines(INITIALIZE), "--endpoint", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"127.0.0.1:1" in done.stderr


# --- signals and readers ----------------------------------------------------------------------------------------------


@contextmanager
def talking(environ: dict[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox-mcp", *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[bytes], *messages: object) -> None:
    assert process.stdin is not None
    process.stdin.write(lines(*messages))
    process.stdin.flush()


def hear(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def begun(process: subprocess.Popen[bytes]) -> None:
    """A call that runs until it is stopped, and has begun."""
    say(process, INITIALIZE, INITIALIZED, call(2, "sandbox_run", code=f"exec {SLEEP}"))
    assert hear(process)["id"] == 1
    wait_until(lambda: bool(sleepers()))


def sleepers() -> list[str]:
    found = subprocess.run(["pgrep", "-f", f"^{SLEEP}$"], capture_output=True, text=True, check=False)
    return found.stdout.split()


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_silence() -> None:
    wait_until(lambda: not sleepers())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_a_signal_ends_it_and_what_it_had_begun(environ: dict[str, str], number: signal.Signals, code: int) -> None:
    with talking(environ) as process:
        begun(process)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code
    wait_for_silence()


def test_a_reader_that_went_away_ends_it(environ: dict[str, str]) -> None:
    with talking(environ) as process:
        begun(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
    wait_for_silence()


def test_a_kill_leaves_nothing_running(environ: dict[str, str]) -> None:
    with talking(environ) as process:
        begun(process)
        process.kill()
        process.wait(PATIENCE_S)
    wait_for_silence()


def test_a_slow_reader_gets_every_line(environ: dict[str, str]) -> None:
    with talking(environ) as process:
        say(process, INITIALIZE, INITIALIZED)
        hear(process)
        for number in range(2, 12):
            say(process, call(number, "sandbox_run", code="head -c 400000 /dev/zero | tr '\\0' x"))
        assert process.stdin is not None
        process.stdin.close()
        assert process.stdout is not None
        found = b""
        while piece := os.read(process.stdout.fileno(), 65536):
            found += piece
        assert sorted(json.loads(line)["id"] for line in found.splitlines()) == list(range(2, 12))
        assert process.wait(PATIENCE_S) == 0


# --- the server goes away ---------------------------------------------------------------------------------------------


def test_a_call_that_loses_its_server_says_so_and_the_next_one_works(tmp_path: Path) -> None:
    root, home = tmp_path / "server", tmp_path / "home"
    root.mkdir()
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "K8E_DATA_DIR": str(root)}
    with server_process(root) as server, talking(environ) as process:
        begun(process)
        server.kill()
        server.wait()
        lost = hear(process)
        assert (lost["id"], lost["result"]["isError"]) == (2, True)
        assert "sandbox_list_files" in lost["result"]["content"][0]["text"]
        with server_process(root):
            say(process, {"jsonrpc": "2.0", "id": 3, "method": "tools/list"})
            assert len(hear(process)["result"]["tools"]) == 12
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(PATIENCE_S) == 0


# --- flags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (":8811", ("127.0.0.1", 8811)),
        ("8811", ("127.0.0.1", 8811)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("127.0.0.1:8811", ("127.0.0.1", 8811)),
        ("[::1]:8811", ("::1", 8811)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_an_address_without_a_host_is_this_machines_own(text: str, found: tuple[str, int]) -> None:
    assert address(text) == found


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:99999", "a b:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="http-addr"):
        address(text)


def test_an_address_that_others_reach_needs_keys(environ: dict[str, str]) -> None:
    def refused(*words: str) -> Sequence[object]:
        argv = [sys.executable, "-m", "k8e.cli.main", "sandbox-mcp", "--http", *words]
        done = subprocess.run(argv, capture_output=True, env=environ, timeout=60, check=False)
        return done.returncode, done.stdout, b"--require-key" in done.stderr

    assert refused("--http-addr", "0.0.0.0:0") == (1, b"", True)
    # With keys it goes on, to the next mistake.
    assert refused("--http-addr", "192.0.2.1:1", "--require-key") == (1, b"", False)
