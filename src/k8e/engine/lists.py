"""A session's list of hosts: what a caller wrote, what the server adds, and the policy that comes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from k8e.engine.settings import EgressSettings
from k8e.errors import Conflict, Denied, InvalidSpec
from k8e.model import EgressMode, EgressPolicy, HostRule, Limits, NetRule, SessionSpec
from k8e.policy import entries

__all__ = ["changed", "default_policy", "policy", "resolved"]

_LONGEST: Final = 256
_FIELD: Final = "allowed_hosts"


def resolved(spec: SessionSpec, settings: EgressSettings) -> SessionSpec:
    """The spec with the list that it means: from here on an empty one allows nothing.

    Raises: InvalidSpec, Denied for an open network where the server has none.
    """
    if spec.network is EgressMode.NONE:
        if spec.allowed_hosts:
            raise InvalidSpec("a session without a network has no list; ask for network=list", field=_FIELD)
        return spec
    if spec.network is EgressMode.OPEN and not settings.allow_open:
        raise Denied("this server gives no session the open network (--allow-open-network); name the hosts instead")
    hosts = _normal(spec.allowed_hosts) or _texts(settings.rules)
    return dataclasses.replace(spec, allowed_hosts=hosts)


def policy(spec: SessionSpec, settings: EgressSettings) -> EgressPolicy:
    """What a session with this resolved spec may reach."""
    rules = () if spec.network is EgressMode.NONE else _rules(spec.allowed_hosts, settings.rules)
    return _policy(spec.network, rules, spec.limits)


def default_policy(limits: Limits, settings: EgressSettings) -> EgressPolicy:
    """What a session that asks for nothing special may reach."""
    return _policy(EgressMode.LIST, _rules(_texts(settings.rules), settings.rules), limits)


def changed(
    spec: SessionSpec, *, hosts: Sequence[str] = (), add: Sequence[str] = (), remove: Sequence[str] = ()
) -> SessionSpec:
    """The spec with another list: entries added and removed, or without either the whole of `hosts`.

    Raises: InvalidSpec, Conflict when there is no network that a list could speak of.
    """
    if spec.network is EgressMode.NONE:
        raise Conflict("this session has no network; create one with network=list")
    if not add and not remove:
        return dataclasses.replace(spec, allowed_hosts=_normal(hosts, "hosts"))
    gone = _normal(remove, "remove")
    for entry in gone:
        if entry not in spec.allowed_hosts:
            raise InvalidSpec(f"{entry} is not on the list: {', '.join(spec.allowed_hosts) or 'empty'}", field="remove")
    kept = [entry for entry in spec.allowed_hosts if entry not in gone]
    return dataclasses.replace(spec, allowed_hosts=_normal([*kept, *add], "add"))


def _policy(mode: EgressMode, rules: tuple[HostRule | NetRule, ...], limits: Limits) -> EgressPolicy:
    return EgressPolicy(mode=mode, rules=rules, connections=limits.connections, bytes_per_s=limits.network_bytes_per_s)


def _normal(written: Iterable[str], field: str = _FIELD) -> tuple[str, ...]:
    """Each entry once, as we write it. Raises: InvalidSpec, naming the request's own field."""
    try:
        found = tuple(dict.fromkeys(entries.text(_parsed(entry)) for entry in written))
    except InvalidSpec as error:
        raise InvalidSpec(str(error).removeprefix(f"{error.field}: "), field=field) from error
    if len(found) > _LONGEST:
        raise InvalidSpec(f"more than {_LONGEST} entries", field=field)
    return found


def _texts(rules: Iterable[HostRule | NetRule]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entries.text(rule) for rule in rules))


def _rules(hosts: Iterable[str], own: tuple[HostRule | NetRule, ...]) -> tuple[HostRule | NetRule, ...]:
    """An entry that names what the operator's own tools use means the operator's own rule."""
    known = {entries.text(rule): rule for rule in own}
    return tuple(known.get(entry) or _parsed(entry) for entry in hosts)


@lru_cache(maxsize=4096)
def _parsed(entry: str) -> HostRule | NetRule:
    return entries.parse(entry)
