"""The skill is true: every command line in it is run as it stands there, and what it names exists."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8e.cli.catalog import Node, leaves, tree
from k8e.cli.grammar import SANDBOX
from k8e.cli.output import WORDS
from k8e.client import SandboxClient
from k8e.mcp.catalogue import ENTRIES as TOOLS
from k8e.skills import SKILL
from k8e.skills.agents import AGENTS
from k8e.skills.folder import LIST, contents
from tests.support.commands import K8E, Run, told
from tests.support.executed import Person, blocks, follow, shell
from tests.support.servers import Server

FILES = {name: data.decode() for name, data in contents().items()}
MAIN = FILES["SKILL.md"]
TEXT = "\n".join(FILES.values())
BARE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


# --- its form ---------------------------------------------------------------------------------------------------------


def _front() -> dict[str, Any]:
    found = re.match(r"---\n(.*?)\n---\n", MAIN, re.DOTALL)
    assert found
    front = yaml.safe_load(found[1])
    assert isinstance(front, dict)
    return front


def test_the_front_matter_is_as_the_format_wants_it() -> None:
    front = _front()
    assert front["name"] == SKILL
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", front["name"])
    assert len(front["name"]) <= 64
    assert 0 < len(front["description"]) <= 1024
    assert len(front["compatibility"]) <= 500
    assert front["user-invocable"] is True


@pytest.mark.parametrize(
    "trigger",
    [
        "run this", "execute", "test it", "try", "install X", "check if this works", "analyze this data",
        "运行", "试一下", "执行", "测试代码", "安装并使用", "分析 CSV", "处理文件", "看看输出", "计算",
    ],
)  # fmt: skip
def test_it_fires_on_what_people_say(trigger: str) -> None:
    assert trigger in _front()["description"]


def test_the_main_file_is_short_and_leads_to_every_other() -> None:
    assert len(MAIN.splitlines()) <= 120
    for name, text in FILES.items():
        links = re.findall(r"\]\(([^)#:]+)\)", text)
        targets = {str((Path("/") / name).parent.joinpath(link))[1:] for link in links}
        assert targets <= FILES.keys(), name
        if name == "SKILL.md":
            assert targets == FILES.keys() - {name}


def test_every_tool_is_named_and_every_name_is_a_tool() -> None:
    named = set(re.findall(r"`(sandbox_\w+)`", TEXT))
    assert named == TOOLS.keys()


def _commands() -> dict[str, Node]:
    return {node.name: node for node in leaves(tree("k8e-sandbox"), "")}


def _inline() -> list[str]:
    return re.findall(r"`([^`\n]+)`", BARE)


def test_command_lines_stand_only_where_they_are_run() -> None:
    assert [code for code in _inline() if code.startswith("k8e ")] == []


def test_commands_and_flags_that_the_text_names_exist() -> None:
    known = _commands()
    flags = {flag for node in known.values() for flag, _, _ in node.flags} | {"--help"}
    seen = 0
    for code in _inline():
        word, *rest = code.split()
        if word.startswith("--"):
            assert word in flags, code
        elif word in known and rest[:1] and rest[0].startswith("--"):
            assert rest[0] in {flag for flag, _, _ in known[word].flags}, code
            seen += 1
    assert seen >= 8
    table = re.findall(r"^\|[^|]+\|([^|]+)\|[^|]+\|$", MAIN, re.MULTILINE)
    for code in re.findall(r"`([^`]+)`", "".join(table)):
        assert code.split()[0] in SANDBOX, code


def test_the_errors_it_explains_are_those_that_there_are() -> None:
    rows = dict(re.findall(r"^\| `([a-z ]+)` \| (\d) \|", FILES["references/errors.md"], re.MULTILINE))
    words = {word: str(code) for word, code in WORDS.values()}
    assert rows.items() <= words.items()
    assert words.keys() - rows.keys() == {"error"}


# --- its command lines ------------------------------------------------------------------------------------------------


@pytest.fixture
def person(server: Server, client: SandboxClient, environ: dict[str, str], tmp_path: Path) -> Iterator[Person]:
    """Somebody with an approver's key of their own."""
    name = f"person-{tmp_path.name[-20:]}"
    made = client.create_api_key(name, role="approver", owner=client.whoami().owner)
    yield Person.coming(client, {**environ, "K8E_SANDBOX_APIKEY": made.key})
    client.delete_api_key(name)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", FILES)
def test_every_command_line_works_as_written(
    name: str, environ: dict[str, str], person: Person, tmp_path: Path
) -> None:
    document = blocks(FILES[name])
    assert document
    with shell(tmp_path, environ) as here:
        follow(document, here, person)


def test_there_are_six_scenarios() -> None:
    text = FILES["references/scenarios.md"]
    assert re.findall(r"^## (\d)\.", text, re.MULTILINE) == list("123456")


# --- where it gets to -------------------------------------------------------------------------------------------------


def test_the_server_has_staged_it_for_everybody(server: Server) -> None:
    target = server.data_dir / "server" / "skills" / SKILL
    found = {str(path.relative_to(target)): path for path in target.rglob("*") if path.is_file() and path.name != LIST}
    assert {name: path.read_text(encoding="utf-8") for name, path in found.items()} == FILES
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in found.values())


def _entry(agent: str, home: Path) -> dict[str, Any]:
    files = {
        "kiro": ".kiro/settings/mcp.json",
        "claude": ".claude.json",
        "gemini": ".gemini/settings.json",
        "openclaw": ".openclaw/openclaw.json",
        "codex": ".codex/config.toml",
        "cursor": ".cursor/mcp.json",
    }
    text = (home / files[agent]).read_text(encoding="utf-8")
    if agent == "codex":
        return dict(tomllib.loads(text)["mcp_servers"]["k8e-sandbox"])
    value = json.loads(text)
    servers = value["mcp"]["servers"] if agent == "openclaw" else value["mcpServers"]
    return dict(servers["k8e-sandbox"])


@pytest.mark.parametrize("is_on_path", [True, False], ids=["on PATH", "by its path"])
def test_what_is_written_into_every_config_starts_from_anywhere(
    k8e: Run, environ: dict[str, str], server: Server, is_on_path: bool
) -> None:
    """With next to nothing around it: the one variable says which server, because the machine's own is not a test's."""
    path = environ["PATH"] if is_on_path else "/usr/bin:/bin"
    made = told(k8e("sandbox-install-skill", *AGENTS, "--json", PATH=path))
    assert made["ok"] is True
    entries = [_entry(agent, Path(environ["HOME"])) for agent in AGENTS]
    assert [entry["command"] for entry in entries] == ["k8e" if is_on_path else str(K8E)] * len(AGENTS)
    [[command, *arguments]] = {(entry["command"], *entry["args"]) for entry in entries}
    started = subprocess.run(
        [command, *arguments],
        input=json.dumps(INITIALIZE).encode() + b"\n",
        cwd="/",
        env={"PATH": path, "HOME": environ["HOME"], "K8E_DATA_DIR": str(server.data_dir)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    answer = json.loads(started.stdout)
    assert answer["id"] == 1
    assert answer["result"]["serverInfo"]["name"] == "k8e-sandbox"
    assert started.returncode == 0
