"""One owner's largest answers beside another owner's smallest calls: the server keeps its memory and its time for both."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from k8e.client import ExecResult, Limits, SandboxClient
from k8e.model import MIB
from tests.support.memory import peak_bytes, reset_peak, resident_bytes
from tests.support.servers import Server

_GREEDY = Path(__file__).with_name("greedy_client.py")
_CALLERS = 2
_CALLS = 150
_SLOWER = 40.0
"""How much longer than alone nineteen of twenty calls may take beside a greedy owner: alone one takes about a
millisecond, so this is some 40 ms, on a machine on which everybody else is busy too."""
_MOST_OUTPUT = 60 * MIB
_LIST = """
import os
deep = "/".join(["d" * 200] * 17)
os.makedirs(deep, exist_ok=True)
os.chdir(deep)
for number in range(8000):
    open(f"{number:06}", "w").close()
"""


@pytest.fixture
def key(mortal: Server) -> str:
    """Of another owner than the one who runs the tests."""
    with SandboxClient(target=mortal.target()) as operator:
        return operator.create_api_key("greedy", owner="greedy").key


@pytest.fixture
def greedy(mortal: Server, key: str) -> Iterator[SandboxClient]:
    with SandboxClient(target=dataclasses.replace(mortal.by_tls(), api_key=key)) as client:
        yield client


def _print(source: str) -> list[str]:
    return ["head", "-c", str(_MOST_OUTPUT), source]


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("what", ["text", "binary", "listing"])
def test_another_owners_small_calls_are_hardly_delayed(
    mortal: Server, greedy: SandboxClient, key: str, what: str
) -> None:
    sid = greedy.create_session(runtime_class="container", limits=Limits(output_bytes=64 * MIB))
    if what == "listing":
        assert greedy.exec(sid, ["python3", "-c", _LIST], 120).exit_code == 0
        asked: tuple[str, dict[str, object]] = ("ListFiles", {"session_id": sid})
    else:
        argv = _print("/dev/zero" if what == "text" else "/dev/urandom")
        words = [base64.b64encode(word.encode()).decode() for word in argv]
        asked = ("Exec", {"session_id": sid, "argv": words})
    with SandboxClient(target=mortal.target()) as quiet:
        quiet.whoami()
        alone = statistics.median(_took(quiet))
        with _callers(mortal, key, *asked):
            beside = sorted(_took(quiet))
    assert beside[len(beside) * 19 // 20] < _SLOWER * alone, f"alone {alone:.4f} s, beside {beside[-20:]}"


@pytest.mark.slow
def test_many_large_answers_at_once_stay_within_their_owners_memory(mortal: Server, greedy: SandboxClient) -> None:
    sid = greedy.create_session(runtime_class="container", limits=Limits(output_bytes=64 * MIB))
    assert len(greedy.exec(sid, _print("/dev/zero"), 120).stdout_bytes) == _MOST_OUTPUT, "one of them is complete"
    before = resident_bytes(mortal.pid)
    reset_peak(mortal.pid)

    def ask(_: int) -> ExecResult:
        return greedy.exec(sid, _print("/dev/urandom"), 300)

    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(ask, range(10)))
    assert all(answer.exit_code == 0 for answer in answers)
    assert all(answer.truncated or len(answer.stdout_bytes) == _MOST_OUTPUT for answer in answers)
    # What is captured, what is encoded of it, and what gRPC copies: each no more than the owner's share.
    assert peak_bytes(mortal.pid) - before < 3 * 256 * MIB


@contextlib.contextmanager
def _callers(server: Server, key: str, rpc: str, request: dict[str, object]) -> Iterator[None]:
    path = server.data_dir / "server" / "k8e.sock"
    argv = [sys.executable, str(_GREEDY), str(path), key, rpc, json.dumps(request)]
    with contextlib.ExitStack() as stack:
        running = []
        for _ in range(_CALLERS):
            process = stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"asking\n"
            running.append(process)
        yield
        assert all(process.poll() is None for process in running), "they were asking all the while"


def _took(client: SandboxClient) -> list[float]:
    took = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        client.whoami()
        took.append(time.perf_counter() - began)
        time.sleep(0.01)
    return took
