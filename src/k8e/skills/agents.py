"""The agents that we know: where each keeps its MCP servers and its skills, and how it writes an entry. Pure.

Every place is the agent's own word, environment variables included; `docs/skills.md` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k8e.skills import ENTRY
from k8e.skills.entry import Address, Entry
from k8e.skills.jsonc import Value

__all__ = ["AGENTS", "Agent", "Place", "Surroundings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where this user and this piece of work are."""

    home: Path
    workspace: Path
    """The current directory; an agent may have a configuration of its own there."""
    environ: Mapping[str, str]
    exists: Callable[[Path], bool]

    def named(self, variable: str, default: Path) -> Path:
        """A directory that an agent lets its user move."""
        text = self.environ.get(variable, "")
        return Path(text.replace("~", str(self.home), 1) if text.startswith("~/") else text) if text else default


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where things go for one agent here."""

    config: Path
    path: tuple[str, ...]
    """The names that lead to our entry in it."""
    skills: Path
    """The directory of skills."""
    signs: tuple[Path, ...]
    """Any of these says that the agent is in use here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    name: str
    format: str
    """`json` (with comments), `json5` or `toml`."""
    place: Callable[[Surroundings], Place]
    address: Callable[[str], dict[str, Value]]
    """How it writes the address of a server that speaks Streamable HTTP."""

    def written(self, entry: Entry) -> dict[str, Value]:
        return self.address(entry.url) if isinstance(entry, Address) else entry.fields()


def _kiro(here: Surroundings) -> Place:
    local, own = here.workspace / ".kiro", here.home / ".kiro"
    directory = local if here.exists(local) else own
    return Place(
        config=directory / "settings" / "mcp.json",
        path=("mcpServers", ENTRY),
        skills=directory / "skills",
        signs=(directory,),
    )


def _claude(here: Surroundings) -> Place:
    directory = here.named("CLAUDE_CONFIG_DIR", here.home / ".claude")
    # With a directory of its own everything is in there; without one, the file lies beside it.
    config = (directory if here.environ.get("CLAUDE_CONFIG_DIR") else here.home) / ".claude.json"
    return Place(config=config, path=("mcpServers", ENTRY), skills=directory / "skills", signs=(directory, config))


def _gemini(here: Surroundings) -> Place:
    directory = here.named("GEMINI_CLI_HOME", here.home) / ".gemini"
    config = directory / "settings.json"
    return Place(config=config, path=("mcpServers", ENTRY), skills=directory / "skills", signs=(directory,))


def _openclaw(here: Surroundings) -> Place:
    directory = here.named("OPENCLAW_STATE_DIR", here.home / ".openclaw")
    config = here.named("OPENCLAW_CONFIG_PATH", directory / "openclaw.json")
    return Place(config=config, path=("mcp", "servers", ENTRY), skills=directory / "skills", signs=(directory, config))


def _codex(here: Surroundings) -> Place:
    directory = here.named("CODEX_HOME", here.home / ".codex")
    # Codex reads the skills of a user from the place that several agents share.
    return Place(
        config=directory / "config.toml",
        path=("mcp_servers", ENTRY),
        skills=here.home / ".agents" / "skills",
        signs=(directory,),
    )


def _cursor(here: Surroundings) -> Place:
    directory = here.home / ".cursor"
    config = directory / "mcp.json"
    return Place(config=config, path=("mcpServers", ENTRY), skills=directory / "skills", signs=(directory,))


def _agent(
    name: str, place: Callable[[Surroundings], Place], address: Callable[[str], dict[str, Value]], text: str = "json"
) -> Agent:
    return Agent(name=name, format=text, place=place, address=address)


_ALL: Sequence[Agent] = (
    _agent("kiro", _kiro, lambda url: {"url": url}),
    _agent("claude", _claude, lambda url: {"type": "http", "url": url}),
    # Its `url` means the older form of the protocol.
    _agent("gemini", _gemini, lambda url: {"httpUrl": url}),
    # Without a word it takes the older form.
    _agent("openclaw", _openclaw, lambda url: {"url": url, "transport": "streamable-http"}, "json5"),
    _agent("codex", _codex, lambda url: {"url": url}, "toml"),
    _agent("cursor", _cursor, lambda url: {"url": url}),
)

AGENTS: Mapping[str, Agent] = {agent.name: agent for agent in _ALL}
