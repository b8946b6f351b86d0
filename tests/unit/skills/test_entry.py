"""What an agent is told about our server, in its own words, and what counts as ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8e.cli.flags.skills import AGENTS as NAMES
from k8e.errors import InvalidSpec
from k8e.skills.agents import AGENTS, Surroundings
from k8e.skills.entry import Address, Command, address, is_ours, is_same
from k8e.skills.jsonc import Number, Value

HOME = Path("/home/a")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://127.0.0.1:8811/mcp"),
        (":8811", "http://127.0.0.1:8811/mcp"),
        ("0.0.0.0:9000", "http://127.0.0.1:9000/mcp"),
        ("[::]:9000", "http://[::1]:9000/mcp"),
        ("[::1]:9000", "http://[::1]:9000/mcp"),
        ("box.example:8811", "http://box.example:8811/mcp"),
        ("https://box.example:443/other", "https://box.example:443/other"),
        ("http://127.0.0.1:8811/", "http://127.0.0.1:8811/mcp"),
    ],
)
def test_where_the_server_listens_is_where_the_agent_connects(text: str, url: str) -> None:
    assert address(text).url == url


@pytest.mark.parametrize("text", ["8811", "here", ":x", ":99999", "ftp://a:1", "a b:1", "a:1\n", "u:p@h:1", "[::1:2"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="K8E_SANDBOX_MCP_ADDR"):
        address(text)


def test_only_this_machines_own_address_needs_no_key() -> None:
    assert address("localhost:1").is_local
    assert address(":1").is_local
    assert not address("box.example:1").is_local


@pytest.mark.parametrize(
    ("agent", "fields"),
    [
        ("kiro", {"url": "u"}),
        ("claude", {"type": "http", "url": "u"}),
        ("gemini", {"httpUrl": "u"}),
        ("openclaw", {"url": "u", "transport": "streamable-http"}),
        ("codex", {"url": "u"}),
        ("cursor", {"url": "u"}),
    ],
)
def test_each_agent_gets_an_address_in_its_own_words(agent: str, fields: dict[str, str]) -> None:
    assert AGENTS[agent].written(Address("u")) == fields
    assert AGENTS[agent].written(Command(("/x/k8e",))) == {"command": "/x/k8e", "args": ["sandbox-mcp"]}


def test_what_a_launcher_must_be_told_stands_in_its_entry() -> None:
    told = Command(("/x/k8e",), {"K8E_HOME": "/h"}).fields()
    assert told == {"command": "/x/k8e", "args": ["sandbox-mcp"], "env": {"K8E_HOME": "/h"}}
    assert is_ours(told)


def test_the_command_line_knows_every_agent() -> None:
    assert (*AGENTS, "all") == NAMES


@pytest.mark.parametrize(
    "value",
    [
        {"command": "k8e", "args": ["sandbox-mcp"]},
        {"type": "stdio", "command": "/opt/x/k8e", "args": ["sandbox-mcp"], "env": {}},
        {"command": "C:\\k8e\\k8e.exe", "args": ["sandbox-mcp"], "disabled": False},
        {"command": "/usr/bin/python3.11", "args": ["-I", "-m", "k8e", "sandbox-mcp"]},
        {"command": "/opt/k8e", "args": ["sandbox-mcp"], "env": {"K8E_HOME": "/x", "K8E_PYTHON": "/y"}},
        {"url": "http://127.0.0.1:8811/mcp"},
        {"type": "http", "url": "http://localhost:1/mcp"},
        {"httpUrl": "http://[::1]:1/mcp"},
        {"url": "http://127.0.0.1:8811/mcp", "transport": "streamable-http"},
    ],
)
def test_an_entry_with_nothing_but_our_words_is_ours(value: Value) -> None:
    assert is_ours(value)


@pytest.mark.parametrize(
    "value",
    [
        {"command": "k8e", "args": ["sandbox-mcp"], "env": {"K8E_SANDBOX_TENANT": "x"}},
        {"command": "k8e", "args": ["sandbox-mcp", "--tenant-id", "x"]},
        {"command": "k8e", "args": ["sandbox-mcp"], "env": {"K8E_HOME": "/x", "A": "b"}},
        {"command": "k8e", "args": ["sandbox-mcp"], "env": "K8E_HOME"},
        {"command": "k8e", "args": ["sandbox-mcp"], "disabled": True},
        {"command": "k8e", "args": ["sandbox-mcp"], "timeout": Number("5")},
        {"command": "npx", "args": ["sandbox-mcp"]},
        {"command": "k8e"},
        {"url": "http://127.0.0.1:8811/mcp", "headers": {"Authorization": "Bearer x"}},
        {"url": "https://box.example/mcp"},
        {"url": "http://127.0.0.1:8811/other"},
        {},
        "k8e",
        None,
    ],
)
def test_an_entry_with_anything_else_is_the_users(value: Value) -> None:
    assert not is_ours(value)


def test_what_means_nothing_makes_no_difference() -> None:
    mine: Value = {"command": "k8e", "args": ["sandbox-mcp"]}
    assert is_same({"type": "stdio", "args": ["sandbox-mcp"], "command": "k8e", "env": {}}, mine)
    assert not is_same({"command": "k8e", "args": ["sandbox-mcp"], "env": {"A": "b"}}, mine)
    assert not is_same("k8e", mine)


def around(environ: dict[str, str] | None = None, *, present: tuple[str, ...] = ()) -> Surroundings:
    there = {Path(each) for each in present}
    return Surroundings(home=HOME, workspace=Path("/work"), environ=environ or {}, exists=there.__contains__)


@pytest.mark.parametrize(
    ("agent", "environ", "config", "skills"),
    [
        ("kiro", {}, "/home/a/.kiro/settings/mcp.json", "/home/a/.kiro/skills"),
        ("claude", {}, "/home/a/.claude.json", "/home/a/.claude/skills"),
        ("claude", {"CLAUDE_CONFIG_DIR": "/c"}, "/c/.claude.json", "/c/skills"),
        ("claude", {"CLAUDE_CONFIG_DIR": "~/c"}, "/home/a/c/.claude.json", "/home/a/c/skills"),
        ("gemini", {}, "/home/a/.gemini/settings.json", "/home/a/.gemini/skills"),
        ("gemini", {"GEMINI_CLI_HOME": "/g"}, "/g/.gemini/settings.json", "/g/.gemini/skills"),
        ("openclaw", {}, "/home/a/.openclaw/openclaw.json", "/home/a/.openclaw/skills"),
        ("openclaw", {"OPENCLAW_STATE_DIR": "/o"}, "/o/openclaw.json", "/o/skills"),
        ("openclaw", {"OPENCLAW_CONFIG_PATH": "/o/c.json5"}, "/o/c.json5", "/home/a/.openclaw/skills"),
        ("codex", {}, "/home/a/.codex/config.toml", "/home/a/.agents/skills"),
        ("codex", {"CODEX_HOME": "/x"}, "/x/config.toml", "/home/a/.agents/skills"),
        ("cursor", {}, "/home/a/.cursor/mcp.json", "/home/a/.cursor/skills"),
    ],
)
def test_each_agent_is_looked_for_where_it_looks_itself(
    agent: str, environ: dict[str, str], config: str, skills: str
) -> None:
    at = AGENTS[agent].place(around(environ))
    assert (str(at.config), str(at.skills)) == (config, skills)


def test_kiro_in_a_workspace_is_configured_there() -> None:
    at = AGENTS["kiro"].place(around(present=("/work/.kiro",)))
    assert str(at.config) == "/work/.kiro/settings/mcp.json"
    assert str(at.skills) == "/work/.kiro/skills"
