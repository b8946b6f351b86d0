"""Agents as their makers publish them read what we wrote into their configs, start it, and know the skill.

Their programs come from npm, some hundred megabytes, into a cache that stays; so this is not for every run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from k8e.skills import SKILL
from tests.support.commands import Run, environ, k8e, tidy

__all__ = ["environ", "k8e", "tidy"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PACKAGES = ("@anthropic-ai/claude-code", "@google/gemini-cli", "@openai/codex")
QUIET = {"DISABLE_TELEMETRY": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def programs() -> Path:
    """The directory that their commands are in."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "k8e-tests" / "agents"
    found = cache / "node_modules" / ".bin"
    if not all((found / name).exists() for name in ("claude", "gemini", "codex")):
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent", *PACKAGES],
            cwd=cache,
            check=True,
        )
    return found


@pytest.fixture
def ask(programs: Path, environ: dict[str, str], tmp_path: Path) -> Run:
    """An agent's own command, in a directory that it trusts."""
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini" / "trustedFolders.json").write_text(json.dumps({str(work): "TRUST_FOLDER"}))
    around = {**environ, **QUIET, "PATH": f"{programs}:{environ['PATH']}"}

    def ask(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(words, cwd=work, env=around, capture_output=True, timeout=200, check=False)

    return ask


def said(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stdout.decode() + done.stderr.decode()


@pytest.mark.parametrize(("agent", "sign"), [("claude", "✔ Connected"), ("gemini", "- Connected")])
def test_the_agent_starts_our_server_and_talks_to_it(k8e: Run, ask: Run, agent: str, sign: str) -> None:
    assert "k8e-sandbox" not in said(ask(agent, "mcp", "list"))
    assert k8e("sandbox-install-skill", agent).returncode == 0
    [line] = [line for line in said(ask(agent, "mcp", "list")).splitlines() if "k8e-sandbox:" in line]
    assert "k8e sandbox-mcp" in line
    assert sign in line


def test_codex_reads_our_entry_as_its_own(k8e: Run, ask: Run) -> None:
    assert k8e("sandbox-install-skill", "codex").returncode == 0
    [entry] = json.loads(ask("codex", "mcp", "list", "--json").stdout)
    assert (entry["name"], entry["enabled"]) == ("k8e-sandbox", True)
    assert entry["transport"]["command"] == "k8e"
    assert entry["transport"]["args"] == ["sandbox-mcp"]


@pytest.mark.parametrize(
    ("agent", "words"),
    [("gemini", ["gemini", "skills", "list"]), ("codex", ["codex", "debug", "prompt-input", "hello"])],
)
def test_the_agent_knows_the_skill(k8e: Run, ask: Run, agent: str, words: list[str]) -> None:
    assert SKILL not in said(ask(*words))
    assert k8e("sandbox-install-skill", agent).returncode == 0
    shown = said(ask(*words))
    assert SKILL in shown
    assert "isolated k8e sandbox" in shown
