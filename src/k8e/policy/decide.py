"""Whether a policy lets a name or an address be reached, and which of its rules says so.

Denials win over everything; how specific a rule is does not matter, nor does the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from k8e.model import EgressMode, EgressPolicy, HostRule, NetRule
from k8e.policy import entries, targets

__all__ = ["Answer", "decide_address", "decide_name"]

_WEB = frozenset({80, 443})
_OPEN = "open"
_DENIED = "denied by the session's list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A decision with its grounds."""

    allowed: bool
    rule: str = ""
    """The entry that decided; empty where none did."""
    may_be_private: bool = False
    reason: str = ""
    """Why not; empty when allowed."""
    port_named: bool = False
    """The entry names this very port, so whoever wrote it meant any protocol there."""


_NO_NETWORK = Answer(allowed=False, reason="this session has no network")


def decide_name(policy: EgressPolicy, name: str, port: int | None) -> Answer:
    """Whether a canonical name may be reached on a port; without one, whether it may be on any (a DNS question)."""
    if policy.mode is EgressMode.NONE:
        return _NO_NETWORK
    speaking = list(_speaking(policy, name))
    denials = [rule for rule in speaking if rule.deny]
    for rule in denials:
        if rule.port is None or rule.port == port:
            return Answer(allowed=False, rule=entries.text(rule), reason=_DENIED)
    grants = [rule for rule in speaking if not rule.deny]
    fitting = _fitting(grants, port) if port is not None else _left(grants, denials)
    if fitting:
        return _granted(fitting)
    if policy.mode is EgressMode.OPEN:
        return Answer(allowed=True, rule=_OPEN)
    if grants and port is None:
        return Answer(allowed=False, rule=entries.text(denials[0]), reason=_DENIED)
    if grants:
        return Answer(allowed=False, reason=f"not on the session's list for port {port}")
    return Answer(allowed=False, reason="not on the session's list")


def decide_address(policy: EgressPolicy, address: str, port: int) -> Answer:
    """Whether an address may be reached as such, without a name.

    Whoever dials still asks `targets.refusal`, which also knows the machine's own addresses.
    """
    if policy.mode is EgressMode.NONE:
        return _NO_NETWORK
    target = targets.normal(address)
    if target is None:
        return Answer(allowed=False, reason="not an address")
    if why := targets.never(target):
        return Answer(allowed=False, reason=why)
    speaking = [rule for rule in policy.rules if isinstance(rule, NetRule) and targets.covers(rule, target, port)]
    for rule in speaking:
        if rule.deny:
            return Answer(allowed=False, rule=entries.text(rule), reason=_DENIED)
    for rule in speaking:
        return Answer(allowed=True, rule=entries.text(rule), port_named=rule.port == port)
    if policy.mode is EgressMode.LIST:
        return Answer(allowed=False, reason="an address without a name is not on the session's list")
    if targets.is_private(target):
        return Answer(allowed=False, reason="a private address")
    return Answer(allowed=True, rule=_OPEN)


def _speaking(policy: EgressPolicy, name: str) -> Iterator[HostRule]:
    for rule in policy.rules:
        if isinstance(rule, HostRule) and (name.endswith(f".{rule.name}") if rule.subdomains else name == rule.name):
            yield rule


def _ports(rule: HostRule) -> frozenset[int]:
    return _WEB if rule.port is None else frozenset({rule.port})


def _fitting(grants: list[HostRule], port: int) -> list[HostRule]:
    return [rule for rule in grants if port in _ports(rule)]


def _left(grants: list[HostRule], denials: list[HostRule]) -> list[HostRule]:
    denied = frozenset(rule.port for rule in denials)
    return [rule for rule in grants if _ports(rule) - denied]


def _granted(fitting: list[HostRule]) -> Answer:
    decisive = next((rule for rule in fitting if rule.port is not None), fitting[0])
    return Answer(
        allowed=True,
        rule=entries.text(decisive),
        may_be_private=any(rule.may_be_private for rule in fitting),
        port_named=decisive.port is not None,
    )
