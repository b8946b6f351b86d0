"""Agents run on every platform, and so does installing for them: where Linux' own modules are not there, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from k8e.skills import SKILL
from tests.unit.client.test_platforms import HIDDEN

PROGRAM = """
for name in ("fchown", "fchmod", "O_DIRECTORY", "setresuid", "setresgid", "initgroups", "setgroups"):
    delattr(os, name)
from k8e.cli.main import main
for words in (["claude", "codex"], ["claude", "codex"], ["claude", "codex", "--uninstall"]):
    assert main(["sandbox-install-skill", *words, "--json"], prog="k8e") == 0
"""


def test_the_skill_is_installed_and_removed_without_linux(tmp_path: Path) -> None:
    (tmp_path / ".claude.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + PROGRAM],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    accounts = [json.loads(line) for line in done.stdout.splitlines()]
    actions = [[step["action"] for agent in each["agents"] for step in agent["steps"]] for each in accounts]
    assert actions == [["added"] * 4, ["unchanged"] * 4, ["removed"] * 4]
    assert SKILL in str(accounts[0])
    assert [path.name for path in tmp_path.iterdir()] == [".claude.json"]
    assert (tmp_path / ".claude.json").read_text() == "{}"
