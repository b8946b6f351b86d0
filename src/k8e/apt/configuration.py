"""What apt on this host is configured with, asked of apt itself.

Only what a sandbox may have is kept: no credentials, no hooks, no paths of the host.
"""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from k8e.apt import sources
from k8e.apt.sources import SIGNED_BY, Source
from k8e.errors import HostUnsupported, InvalidSpec
from k8e.model import HostRule
from k8e.policy import entries

__all__ = ["KEYRINGS_AT", "AptConfiguration", "read"]

_log = logging.getLogger(__name__)

KEYRINGS_AT: Final = "/etc/apt/keyrings"
_TIMEOUT_S: Final = 30.0
_MAX_BYTES: Final = 1024 * 1024
_MAX_FILES: Final = 256
_MAX_SOURCES: Final = 256
_MAX_HOSTS: Final = 64
"""A session's list has at most 256 entries, and there are others."""
_PART: Final = re.compile(r"[A-Za-z0-9_.-]+\.(list|sources)")
"""apt does not read files with other names either."""
_PREFERENCES: Final = re.compile(r"[A-Za-z0-9_-]+(\.pref)?")
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,:~+/=-]{1,256}")

_ASKED: Final = {
    "LIST": "Dir::Etc::sourcelist/f",
    "PARTS": "Dir::Etc::sourceparts/d",
    "TRUSTED": "Dir::Etc::trusted/f",
    "TRUSTED_PARTS": "Dir::Etc::trustedparts/d",
    "PREFERENCES": "Dir::Etc::preferences/f",
    "PREFERENCES_PARTS": "Dir::Etc::preferencesparts/d",
    "HTTP": "Acquire::http::Proxy",
    "HTTPS": "Acquire::https::Proxy",
}
_KEPT: Final = (
    "Acquire::Check-Valid-Until",
    "Acquire::Check-Date",
    "APT::Default-Release",
    "APT::Install-Recommends",
    "APT::Install-Suggests",
)
"""Settings of the host's that a sandbox has as well: plain values that decide what is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AptConfiguration:
    """For sandboxes: what to write into their /etc/apt, and which hosts they may reach for it."""

    sources: tuple[Source, ...] = ()
    hosts: tuple[HostRule, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Lines of apt.conf, by name."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Keys and preferences, by their place in a sandbox below /etc/apt."""


def read(environ: Mapping[str, str]) -> AptConfiguration:
    """Ask apt. Raises: HostUnsupported where there is none, or none of its sources is of use to a sandbox."""
    told = _ask(environ)
    files = dict(_trusted(told))
    hosts = _Hosts()
    found = [
        _with_keys(usable, files)
        for source in islice(_all_sources(told), _MAX_SOURCES)
        if (usable := _usable(source, hosts))
    ]
    if not found:
        raise HostUnsupported(
            "--allow-apt needs a package source with a host that sandboxes can reach by name, over HTTP, and apt has "
            f"none in {told.get('LIST', '')} and {told.get('PARTS', '')}; add one, or start without --allow-apt"
        )
    proxies = {
        f"Acquire::{name.lower()}::Proxy": address
        for name in ("HTTP", "HTTPS")
        if (address := _proxy(told.get(name, ""))) and hosts.allow(sources.host(address))
    }
    if proxies:
        _log.warning("sandboxes reach apt's proxy, and through it whatever it lets through", extra={"proxies": proxies})
    kept = {name: told[name] for name in _KEPT if _PLAIN.fullmatch(told.get(name, ""))}
    return AptConfiguration(sources=tuple(found), hosts=hosts.allowed(), settings={**kept, **proxies}, files=files)


class _Hosts:
    """The rules for hosts, each named once in the log where there can be none."""

    def __init__(self) -> None:
        self._rules: dict[str, HostRule | None] = {}

    def allow(self, entry: str) -> bool:
        if entry not in self._rules and len(self._rules) < _MAX_HOSTS:
            self._rules[entry] = _rule(entry)
        return self._rules.get(entry) is not None

    def allowed(self) -> tuple[HostRule, ...]:
        return tuple(rule for rule in self._rules.values() if rule is not None)


def _rule(entry: str) -> HostRule | None:
    try:
        rule = entries.parse(entry)
    except InvalidSpec as error:
        _log.warning("sandboxes cannot reach a host of apt's", extra={"host": entry[:300], "reason": str(error)})
        return None
    if not isinstance(rule, HostRule) or rule.subdomains or rule.deny:
        _log.warning("sandboxes reach apt's hosts by name only; give this one a name", extra={"host": entry[:300]})
        return None
    # The operator's own choice: it may have a private address.
    return replace(rule, may_be_private=True)


def _usable(source: Source, hosts: _Hosts) -> Source | None:
    """The source with the addresses that a sandbox can reach; None where it has none."""
    public, dropped = sources.reachable(source, _read_mirrors)
    for uri in dropped:
        _log.warning("sandboxes cannot use a source of apt's", extra={"scheme": uri.partition(":")[0][:32]})
    uris = tuple(uri for uri in public.uris if hosts.allow(sources.host(uri))) if public else ()
    return replace(public, uris=uris) if public and uris else None


def _ask(environ: Mapping[str, str]) -> dict[str, str]:
    asked = {**_ASKED, **{f"KEPT{number}": name for number, name in enumerate(_KEPT)}}
    words = [word for pair in asked.items() for word in pair]
    try:
        done = subprocess.run(
            ["apt-config", "shell", *words],
            env=dict(environ),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        lines = [shlex.split(line) for line in done.stdout.splitlines()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        why = error.stderr.strip()[:500] if isinstance(error, subprocess.CalledProcessError) else error
        raise HostUnsupported(
            f"--allow-apt needs apt on this machine, and apt-config does not answer ({why}); start without it"
        ) from error
    told = {name: value for (assignment,) in lines for name, _, value in [assignment.partition("=")]}
    return {(asked[name] if name.startswith("KEPT") else name): value for name, value in told.items() if name in asked}


def _all_sources(told: Mapping[str, str]) -> Iterator[Source]:
    places = [Path(told["LIST"])] if told.get("LIST") else []
    for path in [*places, *_parts(told.get("PARTS", ""), _PART)]:
        text = _text(path)
        yield from sources.from_fields(text) if path.suffix == ".sources" else sources.from_lines(text)


def _trusted(told: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """The keys that count for every source, and the preferences among versions."""
    parts = {
        "trusted.gpg.d": _parts(told.get("TRUSTED_PARTS", ""), re.compile(r"[A-Za-z0-9_.-]+\.(gpg|asc)")),
        "preferences.d": _parts(told.get("PREFERENCES_PARTS", ""), _PREFERENCES),
    }
    for directory, paths in parts.items():
        for path in paths:
            if content := _public_bytes(path):
                yield f"{directory}/{path.name}", content
    for name, where in (("trusted.gpg", told.get("TRUSTED", "")), ("preferences", told.get("PREFERENCES", ""))):
        if where and (content := _public_bytes(Path(where))):
            yield name, content


def _with_keys(source: Source, files: dict[str, bytes]) -> Source:
    """The source with the files of its keys where a sandbox has them; /usr is there as it is."""
    named = source.options.get(SIGNED_BY, "")
    if not named or "\n" in named:
        return source
    return replace(source, options={**source.options, SIGNED_BY: " ".join(_key(word, files) for word in named.split())})


def _key(word: str, files: dict[str, bytes]) -> str:
    path = Path(word)
    if not path.is_absolute() or (path.is_relative_to("/usr") and ".." not in path.parts):
        return word
    # Two of one name from two directories: the number tells them apart.
    place = f"keyrings/{len(files)}-{re.sub(r'[^A-Za-z0-9_.-]', '_', path.name)[:100]}"
    if content := _public_bytes(path):
        files[place] = content
    else:
        _log.warning("sandboxes do not get a key of apt's: not everybody may read it", extra={"path": word[:300]})
    return f"{KEYRINGS_AT}/{place.partition('/')[2]}"


def _proxy(written: str) -> str:
    """`http://host:port` without credentials; empty where there is none that a sandbox could use."""
    if not written or written.upper() == "DIRECT":
        return ""
    address = sources.public(written)
    if not address.startswith("http://"):
        _log.warning("sandboxes cannot use apt's proxy: only http:// proxies are known")
        return ""
    host = sources.host(address)
    if not host.rpartition(":")[0] or host.endswith((":80", ":443")):
        _log.warning("sandboxes cannot use apt's proxy: on ports 80 and 443 each request is for the host itself")
        return ""
    return f"http://{host}"


def _parts(directory: str, names: re.Pattern[str]) -> list[Path]:
    try:
        found = sorted(path for path in Path(directory).iterdir() if directory and names.fullmatch(path.name))
    except OSError:
        return []
    if len(found) > _MAX_FILES:
        _log.warning("of apt's files only the first are read", extra={"directory": directory, "files": _MAX_FILES})
    return found[:_MAX_FILES]


def _read_mirrors(where: str) -> str:
    return _text(Path("/" + where.lstrip("/")))


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace")


def _public_bytes(path: Path) -> bytes:
    """Only what anybody on the host may read anyway."""
    try:
        return _bytes(path) if path.stat().st_mode & 0o004 else b""
    except OSError:
        return b""


def _bytes(path: Path) -> bytes:
    """Empty where there is no such file, or one that is too large to be what it should be."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        _log.warning("cannot read a file of apt's", extra={"path": str(path), "reason": str(error)})
        return b""
    if len(content) > _MAX_BYTES:
        _log.warning("a file of apt's is too large and left out", extra={"path": str(path), "most": _MAX_BYTES})
        return b""
    return content
