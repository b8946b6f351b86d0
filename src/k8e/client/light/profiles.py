"""Servers that a user has named: `profiles.yaml`, `config.json` and the certificates beside them.

Everything lies in `$K8E_SANDBOX_CERT_DIR` or `~/.k8e/sandbox`, where other clients of k8e look, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from k8e import whole
from k8e.client.errors import InvalidRequest

__all__ = [
    "Book",
    "Connection",
    "Profile",
    "config_path",
    "connection",
    "home",
    "load",
    "plain_address",
    "profiles_path",
    "read_config",
    "save",
    "write",
]


class Profile(NamedTuple):
    endpoint: str
    cert_dir: str = ""
    device_name: str = ""


class Book(NamedTuple):
    """All profiles, and the one that is used when none is named."""

    current: str
    profiles: Mapping[str, Profile]
    former: str = ""
    """The file where former clients kept them, if they were read there."""


class Connection(NamedTuple):
    """Where to connect; without an endpoint, to this machine's own server."""

    endpoint: str
    found: str
    """How the endpoint was chosen, for people."""
    cert_dir: Path
    device_name: str = ""
    advice: str = ""
    """What the user might mend, for people."""


def home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("K8E_SANDBOX_CERT_DIR") or Path.home() / ".k8e" / "sandbox")


def connection(endpoint: str, profile: str, environ: Mapping[str, str]) -> Connection:
    """The argument, the environment, the chosen profile, `config.json`, in this order. Raises: InvalidRequest."""
    named = profile or environ.get("K8E_SANDBOX_PROFILE", "")
    book = load(environ)
    name, chosen = _chosen(named, book, environ)
    advice = f"the profiles are still in {book.former}; `profile use` moves them" if book.former else ""
    cert_dir = home(environ)
    if chosen.cert_dir and not environ.get("K8E_SANDBOX_CERT_DIR"):
        cert_dir = Path(chosen.cert_dir).expanduser()
    for address, found in (
        (endpoint, "the argument"),
        (environ.get("K8E_SANDBOX_ENDPOINT", ""), "K8E_SANDBOX_ENDPOINT"),
        (chosen.endpoint, f"profile {name}"),
        ("" if name else read_config(environ).get("endpoint", ""), str(config_path(environ))),
    ):
        if address:
            return Connection(plain_address(address), found, cert_dir, chosen.device_name, advice)
    return Connection("", "this machine", cert_dir, chosen.device_name, advice)


def _chosen(named: str, book: Book, environ: Mapping[str, str]) -> tuple[str, Profile]:
    if named and named not in book.profiles:
        known = ", ".join(sorted(book.profiles)) or "none"
        raise InvalidRequest(f"profile: {named!r} is not in {profiles_path(environ)} (known: {known})")
    name = named or book.current or "default"
    return (name, book.profiles[name]) if name in book.profiles else ("", Profile(""))


def plain_address(text: str) -> str:
    """`host:port`, also of an address with a scheme before it."""
    return text.partition("://")[2].rstrip("/") if "://" in text else text


def profiles_path(environ: Mapping[str, str]) -> Path:
    named = environ.get("K8E_SANDBOX_CONFIG")
    return Path(named) if named else home(environ) / "profiles.yaml"


def config_path(environ: Mapping[str, str]) -> Path:
    return home(environ) / "config.json"


def load(environ: Mapping[str, str]) -> Book:
    """The profiles. Raises: InvalidRequest when the file is no such thing."""
    path, former = profiles_path(environ), ""
    text = _text(path)
    if text is None and not environ.get("K8E_SANDBOX_CONFIG"):
        # Read where former clients kept them, and never written there.
        path = Path.home() / ".k8e" / "config.yaml"
        text, former = _text(path), str(path)
    if text is None:
        return Book("", {})
    import yaml  # costs more than all the rest here, and few have profiles

    try:
        found = yaml.safe_load(text) or {}
        profiles = {str(name): _profile(fields) for name, fields in (found.get("profiles") or {}).items()}
        return Book(str(found.get("current_profile") or ""), profiles, former if profiles else "")
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        raise InvalidRequest(f"{path} is not a file of profiles: {error}") from error


def _profile(fields: Mapping[str, object]) -> Profile:
    return Profile(*(str(fields.get(name) or "") for name in Profile._fields))


def save(book: Book, environ: Mapping[str, str]) -> None:
    import yaml

    kept = {
        name: {key: value for key, value in profile._asdict().items() if value}
        for name, profile in book.profiles.items()
    }
    text = yaml.safe_dump({"version": 1, "current_profile": book.current, "profiles": kept}, sort_keys=True)
    write(profiles_path(environ), text.encode(), 0o600)


def read_config(environ: Mapping[str, str]) -> Mapping[str, str]:
    path = config_path(environ)
    if (text := _text(path)) is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{path}: {error}; mend or remove it") from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"{path} is no JSON object; mend or remove it")
    return {str(key): value for key, value in found.items() if isinstance(value, str)}


def _text(path: Path) -> str | None:
    """A file's text; None where there is none, or where we may not even look: that is somebody else's home."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, PermissionError) and not _is_seen(path):
            return None
        raise InvalidRequest(f"{path}: {error}; mend or remove it") from error


def _is_seen(path: Path) -> bool:
    try:
        path.lstat()
    except PermissionError:
        return False
    return True


def write(path: Path, content: bytes, mode: int) -> None:
    """Write a file of the user's, with its directory."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    whole.replace(path, content, mode=mode)
