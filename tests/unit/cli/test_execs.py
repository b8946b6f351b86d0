"""`k8e sandbox execs`, `follow`, `input` and `signal`: one caller's command under another's hands."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.unit.cli.test_sandbox import PATIENCE_S, Run, told


@pytest.fixture
def started(k8e: Run, environ: dict[str, str]) -> Callable[[str], contextlib.AbstractContextManager[str]]:
    """A program in the foreground of somebody who types nothing: its id."""

    @contextlib.contextmanager
    def start(program: str) -> Iterator[str]:
        argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "run", "--raw", "--timeout", "60", program]
        read, write = os.pipe()
        with subprocess.Popen(argv, stdin=read, stdout=subprocess.PIPE, env=environ) as process:
            os.close(read)
            try:
                yield _reading(k8e)
                assert process.wait(PATIENCE_S) is not None
            finally:
                process.kill()
                os.close(write)

    return start


def _execs(k8e: Run) -> list[dict[str, object]]:
    found = told(k8e("execs"))["execs"]
    assert isinstance(found, list)
    return found


def _reading(k8e: Run) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if reading := [each for each in _execs(k8e) if each["running"] and each["takes_input"] and each["pid"]]:
            return str(reading[0]["exec_id"])
    raise AssertionError("no program reads")


def test_there_is_nothing_where_nobody_has_begun(k8e: Run) -> None:
    assert told(k8e("execs")) == {"execs": []}
    refused = k8e("signal", "exec-1")
    assert refused.returncode == 1
    assert b"--session-id" in refused.stderr + refused.stdout


def test_a_command_is_fed_and_followed_by_somebody_else(k8e: Run, started: Callable[..., object]) -> None:
    with started("echo ready; read line; echo got $line; exit 4") as exec_id:  # type: ignore[attr-defined]  # a context manager
        table = k8e("execs", "--output", "table").stdout.decode()
        assert table.split()[:3] == ["EXEC_ID", "PID", "RUNNING"]
        assert "read line" in table
        assert told(k8e("input", exec_id, "word")) == {"ok": True, "exec_id": exec_id, "bytes": 5, "eof": False}
    run = told(k8e("run", "--background", "echo out; echo err >&2; exit 5"))
    followed = k8e("follow", str(run["run_id"]))
    assert (followed.stdout, followed.stderr, followed.returncode) == (b"out\n", b"err\n", 5)


def test_whoever_has_the_beginning_follows_the_rest_of_each_stream(k8e: Run) -> None:
    run_id = str(told(k8e("run", "--background", "printf 0123456789; printf abcdef >&2; exit 5"))["run_id"])
    whole = k8e("follow", run_id)
    assert (whole.stdout, whole.stderr, whole.returncode) == (b"0123456789", b"abcdef", 5)
    rest = k8e("follow", run_id, "--stdout-offset", "4", "--stderr-offset", "1")
    assert (rest.stdout, rest.stderr, rest.returncode) == (b"456789", b"bcdef", 5)
    nothing = k8e("follow", run_id, "--stdout-offset", "10", "--stderr-offset", "600")
    assert (nothing.stdout, nothing.stderr, nothing.returncode) == (b"", b"", 5)
    refused = k8e("follow", run_id, "--stderr-offset", "-1")
    assert refused.returncode == 1
    assert b"stderr-offset" in refused.stdout


def test_input_may_come_from_a_pipe_and_end(k8e: Run, started: Callable[..., object]) -> None:
    with started("exec wc -c > /workspace/count") as exec_id:  # type: ignore[attr-defined]  # a context manager
        sent = told(k8e("input", "--eof", exec_id, stdin=b"x" * 700_000))
        assert (sent["bytes"], sent["eof"]) == (700_000, True)
    late = k8e("input", exec_id, "late")
    assert late.returncode == 1
    assert told(k8e("run", "cat /workspace/count"))["stdout"] == "700000\n"


def test_a_run_in_the_background_is_given_input_by_its_id(k8e: Run) -> None:
    begun = told(k8e("run", "--background", "--input", "cat; echo end", stdin=b"not this"))
    assert set(begun) == {"run_id", "status", "session_id"}
    run_id = str(begun["run_id"])
    assert told(k8e("input", run_id, "one"))["bytes"] == 4
    assert told(k8e("poll", run_id))["status"] == "running"
    assert told(k8e("input", run_id, "--eof", stdin=b"two\n"))["eof"] is True
    followed = k8e("follow", run_id)
    assert (followed.stdout, followed.returncode) == (b"one\ntwo\nend\n", 0)
    without = told(k8e("run", "--background", "cat; echo end", stdin=b"not this"))
    assert k8e("follow", str(without["run_id"])).stdout == b"end\n", "the control"
    for words in (["-i", "cat"], ["-i", "-n", "--background", "cat"]):
        refused = k8e("run", *words)
        assert (refused.returncode, b"-i: is for --background" in refused.stdout) == (1, True)


def test_a_command_is_signalled_by_its_id(k8e: Run, started: Callable[..., object]) -> None:
    with started("trap 'exit 9' USR1; while read line; do :; done") as exec_id:  # type: ignore[attr-defined]  # a context manager
        assert told(k8e("signal", exec_id, "10"))["ok"] is True
        assert k8e("signal", exec_id, "99").returncode == 1
    assert k8e("follow", "no-such-exec").returncode == 1
