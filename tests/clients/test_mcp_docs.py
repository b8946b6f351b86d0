"""docs/mcp.md is true: its commands are run in order in one shell, and each prints what it says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.clients.test_mcp_stdio import TOOLS
from tests.support.ports import lasting_port

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "mcp.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```sh\n(.*?)^```$\n\n```text\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
BETWEEN = "=== the next example ==="
PORT = "8811"


def test_every_example_is_followed_by_its_answer() -> None:
    assert len(EXAMPLES) == DOCUMENT.count("```sh\n") == 5


def test_the_examples_print_what_the_document_says(users_environ: dict[str, str], tmp_path: Path) -> None:
    script = f"\necho; echo '{BETWEEN}'\n".join(example for example, _ in EXAMPLES)
    # A person is quicker than a busy machine.
    assert script.count("timeout 5 ") == 1
    script = script.replace("timeout 5 ", "timeout 100 ")
    # The document's port may be somebody's on this machine.
    with lasting_port() as port:
        argv = ["bash", "-c", f"set -e\n{script.replace(PORT, str(port))}\nwait"]
        done = subprocess.run(
            argv,
            env=users_environ,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    printed = [each.split() for each in done.stdout.split(BETWEEN)]
    assert printed == [shown.split() for _, shown in EXAMPLES], done.stderr


def test_the_entries_are_json_and_name_the_command() -> None:
    entries = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)]
    assert [each["mcpServers"]["k8e-sandbox"] for each in entries] == [
        {"command": "k8e", "args": ["sandbox-mcp"]},
        {"url": "http://127.0.0.1:8811/mcp"},
    ]


def test_every_tool_is_named() -> None:
    assert set(re.findall(r"`(sandbox_\w+)`", DOCUMENT)) == TOOLS
