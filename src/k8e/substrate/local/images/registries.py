"""Where images come from: the operator's settings, or what the host tells its other container tools.

Read are `registries.conf` (with its directory of additions) and Docker's `daemon.json`. A caller's word alone never makes the
server connect anywhere: a registry is asked only if one of these names it.
"""

from __future__ import annotations

import ipaddress
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from k8e.errors import HostUnsupported, InvalidSpec
from k8e.substrate.local.images.reference import Reference, is_host

__all__ = ["Mirror", "Registries", "Rule", "Source", "read"]

_MAX_BYTES = 1024 * 1024
_CONTAINERS = Path("/etc/containers/registries.conf")
_DOCKER = Path("/etc/docker/daemon.json")
_OFFICIAL = "library"
"""Where the registry that short names usually mean keeps names of one part."""

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One place to ask for an image: its registry, or a mirror of that."""

    host: str
    repository: str
    is_insecure: bool = False
    """Whether plain HTTP, or a certificate that nobody vouches for, is good enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    location: str
    is_insecure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is said of the images whose names begin with `prefix`."""

    prefix: str
    location: str
    """What takes the place of the prefix."""
    mirrors: tuple[Mirror, ...] = ()
    is_insecure: bool = False
    is_blocked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Registries:
    """The operator's word on registries."""

    allowed: tuple[str, ...] = ()
    """Prefixes of full names that may be pulled; a name without a slash is a whole registry."""
    searched: tuple[str, ...] = ()
    """Prefixes for short names, in the order of their turns."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    insecure: frozenset[str] = frozenset()
    is_chosen: bool = False
    """Whether the server's own settings name them, and not the host's."""

    def full_names(self, asked: Reference) -> tuple[Reference, ...]:
        """What the name may mean, in the order of asking. Raises: InvalidSpec with the line that is missing."""
        named = tuple(self._meant(asked))
        if not named:
            raise InvalidSpec(
                f"there is no image {str(asked)!r} on this server, and no registry is set for short names. "
                + self._how_to_allow("registry.example.com"),
                field="image",
            )
        may = tuple(each for each in named if self._is_allowed(each))
        if not may:
            raise InvalidSpec(
                f"{named[0].registry} is none of this server's registries ({_listed(self.allowed)}). "
                + self._how_to_allow(named[0].registry),
                field="image",
            )
        unblocked = tuple(each for each in may if not (rule := self._rule(each)) or not rule.is_blocked)
        if not unblocked:
            raise InvalidSpec(f"{may[0].registry} is blocked in this host's {_CONTAINERS}", field="image")
        return unblocked

    def sources(self, reference: Reference) -> tuple[Source, ...]:
        """Mirrors first, then the registry itself."""
        name, rule = _whole(reference), self._rule(reference)
        if rule is None:
            return (self._source(name, is_insecure=False),)
        places = (*rule.mirrors, Mirror(location=rule.location, is_insecure=rule.is_insecure))
        below = name.removeprefix(rule.prefix)
        return tuple(self._source(each.location + below, is_insecure=each.is_insecure) for each in places)

    def _rule(self, reference: Reference) -> Rule | None:
        """The most exact one."""
        name = _whole(reference)
        return max((each for each in self.rules if _is_below(name, each.prefix)), key=_length, default=None)

    def _meant(self, asked: Reference) -> Iterator[Reference]:
        target = self.aliases.get(asked.repository, "") if not asked.registry else ""
        if target:
            registry, _, repository = target.partition("/")
            yield asked.at(registry, repository)
            return
        for prefix in (asked.registry,) if asked.registry else self.searched:
            registry, _, path = prefix.partition("/")
            for below in (asked.repository, *_official(asked.repository)):
                yield asked.at(registry, f"{path}/{below}" if path else below)

    def _is_allowed(self, reference: Reference) -> bool:
        return any(_is_below(_whole(reference), prefix) for prefix in self.allowed)

    def _how_to_allow(self, registry: str) -> str:
        """Where the registries of this server are set, and the line that has this one, too."""
        line = ",".join([*self.searched, registry])
        told = f"The operator sets it by `k8e server --image-registries {line}` (K8E_SANDBOX_IMAGE_REGISTRIES)"
        if self.is_chosen:
            return told
        listed = ", ".join(f'"{each}"' for each in line.split(","))
        return f"{told}, or in {_CONTAINERS} by: unqualified-search-registries = [{listed}]"

    def _source(self, name: str, *, is_insecure: bool) -> Source:
        host, _, repository = name.partition("/")
        is_insecure = is_insecure or host in self.insecure or _is_loopback(host)
        return Source(host=host, repository=repository, is_insecure=is_insecure)


def read(
    chosen: Sequence[str], insecure: Sequence[str], *, environ: Mapping[str, str], host: Path = Path("/")
) -> Registries:
    """The host's configuration; `chosen` of the settings takes the place of the registries that it names."""
    containers = _containers(host, environ)
    docker = _json(host / _DOCKER.relative_to("/"))
    rules = tuple(filter(None, map(_rule, _tables(containers, "registry"))))
    aliases = {short: full for short, full in containers.get("aliases", {}).items() if isinstance(full, str) and full}
    hub_mirrors = [urlsplit(each) for each in _texts(docker, "registry-mirrors")]
    plain = (each.netloc for each in hub_mirrors if each.scheme == "http")
    searched = [*_texts(containers, "unqualified-search-registries"), *(_place(each) for each in hub_mirrors)]
    named = [*searched, *(rule.prefix for rule in rules if not rule.is_blocked), *aliases.values()]
    return Registries(
        allowed=_prefixes(chosen or named),
        searched=_prefixes(chosen or searched),
        aliases={} if chosen else aliases,
        rules=rules,
        is_chosen=bool(chosen),
        insecure=frozenset([*insecure, *_texts(docker, "insecure-registries"), *plain]),
    )


def _containers(host: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """`registries.conf`, and over it the files of its directory by their names, as its other readers have it."""
    if own := environ.get("CONTAINERS_REGISTRIES_CONF"):
        return _toml(Path(own))
    path = host / _CONTAINERS.relative_to("/")
    read = _toml(path)
    for part in sorted(path.with_name(f"{path.name}.d").glob("*.conf")):
        added = _toml(part)
        aliases = {**read.get("aliases", {}), **added.get("aliases", {})}
        registry = [*_tables(read, "registry"), *_tables(added, "registry")]
        read = {**read, **added, "aliases": aliases, "registry": registry}
    return read


def _rule(table: Table) -> Rule | None:
    location, prefix = str(table.get("location", "")), str(table.get("prefix", ""))
    prefix = prefix or location
    # SAFETY: `*.example.com` would let a caller choose hosts below it, and has no one place that stands for it.
    if not prefix or prefix.startswith("*"):
        return None
    mirrors = tuple(
        Mirror(location=str(each["location"]), is_insecure=each.get("insecure") is True)
        for each in _tables(table, "mirror")
        if each.get("location")
    )
    return Rule(
        prefix=prefix,
        location=location or prefix,
        mirrors=mirrors,
        is_insecure=table.get("insecure") is True,
        is_blocked=table.get("blocked") is True,
    )


def _official(repository: str) -> tuple[str, ...]:
    return () if "/" in repository else (f"{_OFFICIAL}/{repository}",)


def _prefixes(entries: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.rstrip("/") for each in entries if is_host(each.partition("/")[0])))


def _whole(reference: Reference) -> str:
    return f"{reference.registry}/{reference.repository}"


def _is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}/")


def _length(rule: Rule) -> int:
    return len(rule.prefix)


def _is_loopback(host: str) -> bool:
    """As other tools have it: what never leaves the machine may be plain HTTP."""
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _listed(prefixes: Sequence[str]) -> str:
    return ", ".join(prefixes[:10]) if prefixes else "it has none"


def _place(url: SplitResult) -> str:
    return f"{url.netloc}{url.path}".rstrip("/")


def _tables(table: Table, name: str) -> list[Table]:
    value = table.get(name, [])
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(table: Table, name: str) -> list[str]:
    value = table.get(name, [])
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _toml(path: Path) -> dict[str, Any]:
    return _parsed(path, tomllib.loads)


def _json(path: Path) -> dict[str, Any]:
    return _parsed(path, json.loads)


def _parsed(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """Empty where there is no such file. Raises: HostUnsupported, for one that cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise HostUnsupported(f"{path} cannot be read: {error}") from error
    try:
        found = parse(text) if text.strip() else {}
    except ValueError as error:
        raise HostUnsupported(f"{path} is not valid, so nobody knows where images come from: {error}") from error
    if not isinstance(found, dict):
        raise HostUnsupported(f"{path} is not valid: it is no table of settings")
    return found
