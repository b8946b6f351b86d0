"""`sandbox-install-skill` as people type it: what it says, what it leaves alone, and how it ends."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k8e.skills import SKILL
from k8e.skills.agents import AGENTS

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
SCRIPT = Path(sys.executable).with_name("k8e")
NOBODY = 65534


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Run:
    """`k8e sandbox-install-skill …` in a directory of its own."""
    (tmp_path / "work").mkdir()
    environ = {"PATH": f"{SCRIPT.parent}:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}

    def run(*words: str, command: str = "sandbox-install-skill", **extra: str) -> Done:
        argv = [str(SCRIPT), *command.split(), *words]
        env = {key: value for key, value in (environ | extra).items() if value != "-"}
        return subprocess.run(
            argv, cwd=tmp_path / "work", env=env, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def told(done: Done) -> dict[str, Any]:
    (line,) = done.stdout.splitlines()
    value = json.loads(line)
    assert isinstance(value, dict)
    return value


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_all_means_every_agent_that_is_in_use_here(run: Run, home: Path) -> None:
    (home / ".gemini").mkdir()
    (home / ".claude.json").write_text('{"numStartups": 3}')
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{home}/.claude.json: k8e-sandbox added (as it was: {home}/.claude.json.k8e-backup)" in done.stdout
    assert f"{home}/.gemini/settings.json: k8e-sandbox added\n" in done.stdout
    assert f"{home}/.gemini/skills/{SKILL}: added, " in done.stdout
    for name in AGENTS.keys() - {"claude", "gemini"}:
        assert f"to install anyway: k8e sandbox-install-skill {name}" in done.stdout
    entry = json.loads((home / ".claude.json").read_text())["mcpServers"]["k8e-sandbox"]
    assert entry == {"command": "k8e", "args": ["sandbox-mcp"]}
    assert not (home / ".cursor").exists()
    again = run()
    assert again.stdout.count("unchanged") == 4
    gone = run("--uninstall")
    assert gone.stdout.count("removed") == 4
    assert "to install anyway" not in gone.stdout
    assert files(home) == {f"{home}/.claude.json": b'{"numStartups": 3}'}


def test_a_named_agent_is_installed_for_whether_in_use_or_not(run: Run, home: Path) -> None:
    done = told(run("codex", "cursor", "--json"))
    assert [each["agent"] for each in done["agents"]] == ["codex", "cursor"]
    assert done["ok"] is True
    assert done["skipped"] == []
    assert (home / ".codex" / "config.toml").read_text().startswith("[mcp_servers.k8e-sandbox]\n")
    assert told(run("codex", "cursor", "--json", "--uninstall"))["ok"] is True
    assert list(home.iterdir()) == []


def test_no_agent_at_all_is_not_found_and_says_where_it_looked(run: Run, home: Path) -> None:
    done = run()
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{home}/.codex" in done.stderr
    assert told(run("--json"))["error"] == "not found"
    assert run("--uninstall").returncode == 0


def test_an_unknown_agent_is_refused_with_the_nearest_name(run: Run) -> None:
    done = run("cluade")
    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean 'claude'?" in done.stderr


def test_a_dry_run_shows_a_diff_and_writes_nothing(run: Run, home: Path) -> None:
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text('{\n  "mcpServers": {}\n}\n')
    before = files(home)
    done = run("--dry-run")
    assert done.returncode == 0
    assert '+    "k8e-sandbox": {' in done.stdout
    assert "would be added" in done.stdout
    assert "SKILL.md" in done.stdout
    shown = told(run("--dry-run", "--json"))
    assert shown["dry_run"] is True
    assert "+++" in shown["agents"][0]["steps"][0]["diff"]
    assert files(home) == before


@pytest.mark.parametrize(
    ("words", "extra", "url"),
    [
        (["--http"], {}, "http://127.0.0.1:8811/mcp"),
        ([], {"K8E_SANDBOX_MCP_ADDR": ":9911"}, "http://127.0.0.1:9911/mcp"),
        (["--http"], {"K8E_SANDBOX_MCP_ADDR": "0.0.0.0:9911"}, "http://127.0.0.1:9911/mcp"),
    ],
)
def test_an_address_is_written_where_one_is_wanted(
    run: Run, home: Path, words: list[str], extra: dict[str, str], url: str
) -> None:
    done = run("claude", "gemini", *words, **extra)
    assert done.returncode == 0
    assert "k8e sandbox-mcp --http --http-addr 127.0.0.1:" in done.stdout
    claude = json.loads((home / ".claude.json").read_text())["mcpServers"]["k8e-sandbox"]
    gemini = json.loads((home / ".gemini" / "settings.json").read_text())["mcpServers"]["k8e-sandbox"]
    assert (claude, gemini) == ({"type": "http", "url": url}, {"httpUrl": url})


def test_an_address_elsewhere_wants_a_key_and_says_so(run: Run) -> None:
    assert "API key" in run("cursor", K8E_SANDBOX_MCP_ADDR="box.example:8811").stdout
    assert "API key" not in run("cursor", "--http").stdout
    refused = run("cursor", K8E_SANDBOX_MCP_ADDR="nonsense")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "K8E_SANDBOX_MCP_ADDR" in refused.stderr


def test_one_broken_config_is_told_and_the_others_are_done(run: Run, home: Path) -> None:
    (home / ".cursor").mkdir()
    (home / ".gemini").mkdir()
    (home / ".cursor" / "mcp.json").write_text('{"mcpServers": {,}}')
    done = run()
    assert done.returncode == 1
    assert f"{home}/.cursor/mcp.json, line 1, column 17: a key in quotes is expected, not ','" in done.stdout
    assert (home / ".cursor" / "mcp.json").read_text() == '{"mcpServers": {,}}'
    assert not (home / ".cursor" / "skills").exists()
    assert (home / ".gemini" / "skills" / SKILL / "SKILL.md").is_file()
    shown = told(run("--json"))
    assert shown["ok"] is False
    assert "left as it is" in shown["agents"][1]["detail"]


def test_an_entry_of_ones_own_is_kept_and_the_exit_code_says_so(run: Run, home: Path) -> None:
    own = '{"mcpServers": {"k8e-sandbox": {"command": "other"}}}'
    (home / ".claude.json").write_text(own)
    done = run("claude")
    assert done.returncode == 1
    assert "your own; --force replaces it" in done.stdout
    assert (home / ".claude.json").read_text() == own
    assert run("claude", "--force").returncode == 0
    assert "sandbox-mcp" in (home / ".claude.json").read_text()


def test_kiro_in_a_workspace_is_configured_there(run: Run, home: Path, tmp_path: Path) -> None:
    (tmp_path / "work" / ".kiro").mkdir()
    assert run("kiro").returncode == 0
    assert (tmp_path / "work" / ".kiro" / "settings" / "mcp.json").is_file()
    assert (tmp_path / "work" / ".kiro" / "skills" / SKILL).is_dir()
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("value", ["", "relative", "/nonexistent"])
def test_a_home_that_is_none_is_an_error_in_words(run: Run, value: str) -> None:
    done = run("claude", HOME=value)
    assert (done.returncode, done.stdout) == (1, "")
    assert "HOME" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a file system")
def test_a_read_only_home_is_an_error_in_words(run: Run, home: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "k8e-test", str(home)], check=True)
    try:
        done = run("claude")
    finally:
        subprocess.run(["umount", str(home)], check=True)
    assert done.returncode == 2
    assert f"cannot write {home}/.claude.json: Read-only file system" in done.stdout
    assert "Traceback" not in done.stderr
    assert run("claude").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a file system")
@pytest.mark.parametrize("size", [60, 100], ids=["no room for the backup", "no room for the new file"])
def test_a_full_disk_leaves_the_config_as_it_was(run: Run, home: Path, size: int) -> None:
    config = '{"notes": "' + "x" * 40_000 + '"}'
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "k8e-test", str(home)], check=True)
    try:
        (home / ".claude.json").write_text(config)
        done = run("claude")
        left = {path.name: path.read_text() for path in home.iterdir()}
    finally:
        subprocess.run(["umount", str(home)], check=True)
    assert done.returncode == 2
    assert "No space left on device" in done.stdout
    assert left.keys() <= {".claude.json", ".claude.json.k8e-backup"}
    assert set(left.values()) == {config}
    # The control: with room enough it is done.
    (home / ".claude.json").write_text(config)
    assert run("claude").returncode == 0


def test_a_pipe_where_the_config_should_be_keeps_nobody_waiting(run: Run, home: Path) -> None:
    os.mkfifo(home / ".claude.json")
    done = run("claude")
    assert done.returncode == 2
    assert f"{home}/.claude.json is no file" in done.stdout


# --- root in somebody's home ------------------------------------------------------------------------------------------


@pytest.fixture
def theirs(home: Path, tmp_path: Path) -> Path:
    """A home of somebody else's, whom everything on the way lets through."""
    if os.geteuid() != 0:
        pytest.skip("needs root: acts for another user")
    for directory in (*tmp_path.parents, tmp_path):
        if not directory.stat().st_mode & 0o001:
            directory.chmod(directory.stat().st_mode | 0o011)
    os.chown(home, NOBODY, NOBODY)
    return home


def test_root_in_somebodys_home_leaves_files_of_that_somebody(run: Run, theirs: Path) -> None:
    done = run("claude", "codex")
    assert done.returncode == 0, done.stdout + done.stderr
    made = list(theirs.rglob("*"))
    assert made
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(NOBODY, NOBODY)}


def test_a_directory_that_lets_nobody_in_is_told_and_the_others_are_done(run: Run, theirs: Path) -> None:
    (theirs / ".claude").mkdir(mode=0o700)
    done = run("claude", "cursor")
    assert done.returncode == 2
    assert f"{theirs}/.claude.json: k8e-sandbox added" in done.stdout
    assert "  failed: " in done.stdout
    assert "Permission denied" in done.stdout
    assert f"{theirs}/.cursor/mcp.json: k8e-sandbox added" in done.stdout
    os.chown(theirs / ".claude", NOBODY, NOBODY)
    assert run("claude").returncode == 0


def test_root_does_not_follow_links_out_of_somebodys_home(run: Run, theirs: Path, tmp_path: Path) -> None:
    victim = tmp_path / "roots.json"
    victim.write_text("{}")
    victim.chmod(0o644)
    (theirs / ".claude.json").symlink_to(victim)
    done = run("claude")
    assert done.returncode == 2
    assert "Permission denied" in done.stdout
    assert (victim.read_text(), victim.stat().st_uid) == ("{}", 0)
    # The control: what is theirs is followed.
    os.chown(victim, NOBODY, NOBODY)
    os.chown(tmp_path, NOBODY, NOBODY)
    assert run("claude").returncode == 0
    assert "sandbox-mcp" in victim.read_text()


def test_root_does_not_write_into_somebody_elses_workspace(run: Run, home: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    directory = tmp_path / "work" / ".kiro"
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    done = run("kiro")
    assert done.returncode == 2
    assert "run this as that user" in done.stdout
    assert list(directory.iterdir()) == []
    os.chown(directory, 0, 0)
    assert run("kiro").returncode == 0


def test_root_by_sudo_for_itself_is_told_whose_agents_these_are(run: Run) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    assert "for alice's, run it as alice" in run("claude", SUDO_USER="alice").stdout
    assert "note:" not in run("claude").stdout


# --- connect ----------------------------------------------------------------------------------------------------------


def test_connect_can_install_the_skill_and_nothing_else(run: Run, home: Path) -> None:
    (home / ".claude").mkdir()
    done = run("--skill-only", command="sandbox connect", K8E_SANDBOX_ENDPOINT="127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    skills = told(done)["skills"]
    assert [(each["agent"], each["steps"][0]["action"]) for each in skills] == [("claude", "added")]
    assert not (home / ".claude.json").exists()
    assert not (home / ".k8e").exists()
    assert stat.S_ISDIR((home / ".claude" / "skills" / SKILL).stat().st_mode)


def test_connect_installs_for_the_agent_that_is_named(run: Run, home: Path) -> None:
    assert run("--skill-only", "--agent", "codex", command="sandbox connect").returncode == 0
    assert (home / ".agents" / "skills" / SKILL / "SKILL.md").is_file()
    refused = run("--skill-only", "--agent", "nobody", command="sandbox connect")
    assert (refused.returncode, told(refused)["error"]) == (1, "invalid request")
    assert "kiro, claude" in told(refused)["detail"]


def test_connect_without_any_agent_is_no_failure(run: Run) -> None:
    done = run("--skill-only", command="sandbox connect")
    assert (done.returncode, told(done)["skills"]) == (0, [])
    stored = run("--skip-verify", command="sandbox connect", K8E_SANDBOX_ENDPOINT="127.0.0.1:1")
    assert (stored.returncode, told(stored)["skills"]) == (0, [])


def test_connect_leaves_agents_alone_when_told_to(run: Run, home: Path) -> None:
    (home / ".claude").mkdir()
    done = run("--skip-verify", "--skip-skill", command="sandbox connect", K8E_SANDBOX_ENDPOINT="127.0.0.1:1")
    assert done.returncode == 0
    assert list((home / ".claude").iterdir()) == []
    done = run("--skip-verify", command="sandbox connect", K8E_SANDBOX_ENDPOINT="127.0.0.1:1")
    assert (home / ".claude" / "skills" / SKILL).is_dir()
