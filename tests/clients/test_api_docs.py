"""docs/api.md is true: its examples are run in order in one shell, and each answers what it says."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```sh\n(.*?)^```$\n\n```(?:json|text)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
BETWEEN = "=== the next example ==="
PATIENCE_S = 60.0


@pytest.fixture
def told(users_environ: dict[str, str]) -> list[str]:
    """What every example printed."""
    script = f"\necho; echo '{BETWEEN}'\n".join(example for example, _ in EXAMPLES)
    done = subprocess.run(["bash", "-c", script], env=users_environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split(BETWEEN)


def pattern(shown: str) -> str:
    """What an example must print: … stands for what differs from one time to the next."""
    return ".*?".join(map(re.escape, shown.strip().split("…")))


def test_every_example_is_followed_by_its_answer() -> None:
    assert len(EXAMPLES) >= 8
    assert len(EXAMPLES) == DOCUMENT.count("```sh\n")


def test_the_examples_answer_as_the_document_says(told: list[str]) -> None:
    assert len(told) == len(EXAMPLES)
    for (example, shown), printed in zip(EXAMPLES, told, strict=True):
        lines = "\n".join(line for line in printed.splitlines() if line)
        wanted = "\n".join(line for line in shown.splitlines() if line)
        assert re.fullmatch(pattern(wanted), lines), f"{example}\nprinted\n{lines}\nand not\n{wanted}"


@pytest.fixture
def api(environ: dict[str, str]) -> Api:
    return Api(Path(environ["K8E_DATA_DIR"]) / "server" / "k8e.sock")


@dataclass(frozen=True, slots=True)
class Api:
    """What the document's `call` is, from Python."""

    socket: Path

    def argv(self, rpc: str, request: object) -> list[str]:
        kind, url = "content-type: application/json", f"http://localhost/sandbox.v1.SandboxService/{rpc}"
        return ["curl", "-sN", "--unix-socket", str(self.socket), url, "-H", kind, "-d", json.dumps(request)]

    def call(self, rpc: str, request: object) -> Any:
        done = subprocess.run(self.argv(rpc, request), capture_output=True, check=True)
        return json.loads(done.stdout)

    def until(self, session_id: str, *, runs: bool) -> None:
        """Wait until the session runs `sleep`, or does not."""
        deadline = time.monotonic() + PATIENCE_S
        while ("sleep" in json.dumps(self.call("GetProcesses", {"session_id": session_id}))) is not runs:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_call_that_is_killed_stops_its_command_inside_the_sandbox(api: Api) -> None:
    session_id = api.call("CreateSession", {})["session_id"]
    asked = api.argv("Exec", {"session_id": session_id, "command": "sleep 600", "timeout": 600})
    with subprocess.Popen(asked, stdout=subprocess.DEVNULL) as calling:
        api.until(session_id, runs=True)
        calling.kill()
    api.until(session_id, runs=False)
    assert api.call("Exec", {"session_id": session_id, "command": "echo still here"})["stdout"] == "still here\n"
