"""What an agent is told about our MCP server: a command that starts it, or the address where it listens. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from urllib.parse import urlsplit

from k8e.errors import InvalidSpec
from k8e.skills.jsonc import Value

__all__ = ["SETTINGS", "WORD", "Address", "Command", "Entry", "address", "is_ours", "is_same"]

WORD = "sandbox-mcp"
SETTINGS = ("K8E_HOME", "K8E_PYTHON")
"""By which a user says where a launcher keeps itself and which Python it takes."""
DEFAULT_ADDRESS = ":8811"
ANYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104 - what to say instead of these, not where to listen
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
STARTS = re.compile(r"(?:k8e|python[0-9.]*)(?:\.(?:exe|cmd|bat|pyz))?\Z", re.IGNORECASE)
ARGUMENTS: tuple[list[str], ...] = ([WORD], ["-I", "-m", "k8e", WORD])
TRANSPORTS = (("type", "http"), ("type", "sse"), ("transport", "streamable-http"), ("transport", "sse"))
MEANINGLESS: Mapping[str, tuple[Value, ...]] = {"type": ("stdio",), "env": ({},), "disabled": (False,)}
"""What some agents write along and mean nothing by."""


@dataclass(frozen=True, slots=True)
class Command:
    """Start it; `argv` is how this program is started, without the word for the MCP server."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """What it must be told to start, of `SETTINGS`."""

    def fields(self) -> dict[str, Value]:
        start: dict[str, Value] = {"command": self.argv[0], "args": [*self.argv[1:], WORD]}
        return {**start, "env": dict(self.env)} if self.env else start


@dataclass(frozen=True, slots=True)
class Address:
    """It listens there already."""

    url: str

    @property
    def is_local(self) -> bool:
        return urlsplit(self.url).hostname in LOOPBACK


Entry = Command | Address


def address(text: str) -> Address:
    """From what the server is told to listen on, `:8811` or `host:8811`, or from a whole URL. Raises: InvalidSpec."""
    named = text or DEFAULT_ADDRESS
    whole = named if "://" in named else f"http://{named}"
    try:
        parts = urlsplit(whole)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise InvalidSpec(f"{text!r} is no address: {error}", field="K8E_SANDBOX_MCP_ADDR") from error
    if (
        parts.scheme not in {"http", "https"}
        or port is None
        or parts.username
        or not named.isprintable()
        or " " in named
    ):
        raise InvalidSpec(f"{text!r} is neither host:port nor a URL with a port", field="K8E_SANDBOX_MCP_ADDR")
    host = "127.0.0.1" if host in ANYWHERE and ":" not in host else "::1" if host in ANYWHERE else host
    shown = f"[{host}]" if ":" in host else host
    return Address(f"{parts.scheme}://{shown}:{port}{parts.path if parts.path.strip('/') else '/mcp'}")


def is_same(found: Value, wanted: Value) -> bool:
    """Whether the agent does the same with both."""
    return _meant(found) == _meant(wanted)


def is_ours(found: Value) -> bool:
    """Whether it holds nothing that we would not have written: then nothing of the user's is lost with it."""
    meant = _meant(found)
    if not isinstance(meant, Mapping):
        return False
    match dict(meant):
        case {"command": str(command), "args": [*args], **more}:
            return (
                _is_told(more) and bool(STARTS.match(PurePath(command.replace("\\", "/")).name)) and args in ARGUMENTS
            )
        case {"url": str(url), **more} | {"httpUrl": str(url), **more}:
            is_plain = all((key, value) in TRANSPORTS for key, value in more.items())
            return is_plain and urlsplit(url).hostname in LOOPBACK and urlsplit(url).path == "/mcp"
        case _:
            return False


def _is_told(more: Mapping[str, Value]) -> bool:
    """Whether there is nothing more than what a launcher may have to be told."""
    env = more.get("env", {})
    return not more.keys() - {"env"} and isinstance(env, Mapping) and not env.keys() - set(SETTINGS)


def _meant(value: Value) -> Value:
    if not isinstance(value, Mapping):
        return value
    return {key: each for key, each in value.items() if each not in MEANINGLESS.get(key, ())}
