"""What registries are told of who asks: the credentials that `docker login` or `podman login` left on this host."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k8e.errors import HostUnsupported

__all__ = ["Credentials", "find"]

_MAX_BYTES = 1024 * 1024
_HELPER = re.compile(r"[A-Za-z0-9._-]+")
_HELPER_TIMEOUT_S = 30.0
_TOKEN_USER = "<token>"  # noqa: S105 - what a helper puts in place of a user whose secret is a token
_ALSO_FILED_UNDER = ("index.",)
"""Docker files the credentials of its own registry under the name of that registry's index."""


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)
    """In place of a password: exchanged for a token of the registry's."""


def find(host: str, repository: str, environ: Mapping[str, str]) -> Credentials | None:
    """The most exact of the first file that has any. Raises: HostUnsupported, when a file or a helper fails."""
    names = [*_prefixes(f"{host}/{repository}"), *(f"{prefix}{host}" for prefix in _ALSO_FILED_UNDER)]
    for path in _files(environ):
        found = _in_file(path, names)
        if found is not None:
            return found
    return None


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where they may lie, in the order in which those programs look."""
    home = Path(environ.get("HOME") or Path.home())
    if own := environ.get("REGISTRY_AUTH_FILE"):
        yield Path(own)
    yield Path(environ.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}") / "containers" / "auth.json"
    yield Path(f"/run/containers/{os.getuid()}/auth.json")
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"
    yield Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"


def _prefixes(name: str) -> list[str]:
    """`host/a/b`, `host/a`, `host`."""
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _in_file(path: Path, names: list[str]) -> Credentials | None:
    config = _read(path)
    helpers, logins = config.get("credHelpers"), config.get("auths")
    helpers = {_bare(name): helper for name, helper in helpers.items()} if isinstance(helpers, dict) else {}
    logins = {_bare(name): (name, entry) for name, entry in logins.items()} if isinstance(logins, dict) else {}
    for name in names:
        if name in helpers:
            return _from_helper(str(helpers[name]), name)
        if name in logins:
            key, entry = logins[name]
            if config.get("credsStore") and not (isinstance(entry, dict) and entry.get("auth")):
                return _from_helper(str(config["credsStore"]), key)
            return _from_entry(path, key, entry)
    return None


def _bare(name: str) -> str:
    """Old entries are addresses: `https://host/v1/`."""
    name = re.sub(r"^https?://", "", name)
    return re.sub(r"/(v[12]/?)?$", "", name)


def _from_entry(path: Path, name: str, entry: Any) -> Credentials | None:
    if not isinstance(entry, dict):
        return None
    if token := entry.get("identitytoken"):
        return Credentials("", "", str(token))
    if not entry.get("auth"):
        return None
    try:
        user, _, password = base64.b64decode(str(entry["auth"]), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise HostUnsupported(f"{path} has no valid login for {name}: log in again") from error
    return Credentials(user, password.rstrip("\0"))


def _from_helper(helper: str, name: str) -> Credentials | None:
    """Ask `docker-credential-HELPER`, a program of the operator's."""
    program = shutil.which(f"docker-credential-{helper}") if _HELPER.fullmatch(helper) else None
    if program is None:
        raise HostUnsupported(f"docker-credential-{helper}, which knows the login for {name}, is not installed")
    try:
        asked = subprocess.run(
            [program, "get"], input=name, capture_output=True, text=True, check=False, timeout=_HELPER_TIMEOUT_S
        )
        if asked.returncode:
            # It says so by its exit code, whether it has none or could not look.
            return None
        answer = json.loads(asked.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise HostUnsupported(f"docker-credential-{helper} did not tell the login for {name}: {error}") from error
    return Credentials("", "", secret) if user == _TOKEN_USER else Credentials(user, secret)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            found = json.loads(file.read(_MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise HostUnsupported(f"{path} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}
