"""What an agent pays for MCP: the time to a first answer, and what a tool adds to the call that it makes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.lab import NO_POOL, Lab
from bench.rows import Row, no_more_than, ratio
from bench.series import Probe, interleaved, timed
from k8e.model import Runtime

__all__ = ["mcp"]

_FIRST = 0.5
_ADDED_MS = 3.0
_PAUSE_S = 0.15
"""Between two measurements, so that neither pays for what the server prepares after the one before."""
_COMMAND = Path(sys.executable).parent / "k8e"
_HELLO = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("hello")
@server.tool()
def hello(name: str) -> str:
    return f"hello {name}"
server.run("stdio")
"""
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}
_INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def mcp(lab: Lab) -> Iterator[Row]:
    """Beside a hello-world server on the same library, and beside the SDK."""
    with lab.deployment.serving(*NO_POOL) as server, lab.session(server, Runtime.CONTAINER) as session_id:
        environ = _environ(lab)
        ours = [str(_COMMAND), "sandbox-mcp"]
        theirs = [sys.executable, "-c", _HELLO]
        probes = {"ours": _first_answer(ours, environ), "theirs": _first_answer(theirs, environ)}
        seen = interleaved(probes, n=lab.n, pause_s=_PAUSE_S)
        yield ratio(
            "k8e sandbox-mcp, first initialize answer",
            seen["ours"],
            seen["theirs"],
            beside="hello world on the same library",
            bound=_FIRST,
        )
        with _agent(ours, environ) as agent:
            tool = timed(lambda: agent.call("sandbox_exec", session_id=session_id, command="true"))
            sdk = timed(lambda: server.client.exec(session_id, "true"))
            called = interleaved({"tool": tool, "sdk": sdk}, n=lab.n * 5, pause_s=0.02)
        added = called["tool"].median - called["sdk"].median
        note = f"tool {called['tool'].median:.2f} ms, SDK {called['sdk'].median:.2f} ms"
        yield no_more_than("sandbox_exec true over MCP, beyond the SDK's call", added, _ADDED_MS, unit="ms", note=note)


class _Agent:
    """The least that an MCP client is: one call at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._number = 0

    def begin(self) -> None:
        self._say(_INITIALIZE)
        self._hear()

    def call(self, name: str, **arguments: object) -> Any:
        self._number += 1
        params = {"name": name, "arguments": arguments}
        self._say({"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params})
        answer = self._hear()
        assert answer["result"]["isError"] is False, answer
        return answer

    def go_on(self) -> None:
        self._say(_INITIALIZED)

    def _say(self, message: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextlib.contextmanager
def _agent(argv: Sequence[str], environ: Mapping[str, str]) -> Iterator[_Agent]:
    with _started(argv, environ) as process:
        agent = _Agent(process)
        agent.begin()
        agent.go_on()
        yield agent


@contextlib.contextmanager
def _started(argv: Sequence[str], environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def _first_answer(argv: Sequence[str], environ: Mapping[str, str]) -> Probe:
    """From the start of the process to its answer; its end is not counted."""

    def probe() -> float:
        began = time.perf_counter()
        with _started(argv, environ) as process:
            _Agent(process).begin()
            return (time.perf_counter() - began) * 1000

    return probe


def _environ(lab: Lab) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("K8E_")}
    home = str(lab.deployment.data_dir)
    return {**kept, "K8E_DATA_DIR": home, "HOME": home}
