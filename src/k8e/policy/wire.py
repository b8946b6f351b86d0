"""Policies and decisions as JSON objects: for files, and for the socket between server and egress daemon."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, fields

from k8e.model import Decision, EgressMode, EgressPolicy, HostRule, NetRule, SandboxId, Verdict

__all__ = ["Malformed", "decision_from_json", "decision_to_json", "from_json", "to_json"]


class Malformed(ValueError):
    """Not what we write; nothing of it may be used."""


def to_json(policy: EgressPolicy) -> dict[str, object]:
    """A policy as a JSON object."""
    return {
        "mode": policy.mode.value,
        "rules": [asdict(rule) for rule in policy.rules],
        "connections": policy.connections,
        "bytes_per_s": policy.bytes_per_s,
    }


def from_json(data: Mapping[str, object]) -> EgressPolicy:
    """The policy that `to_json` wrote.

    Raises:
        Malformed: it is no policy.
    """
    rules = data.get("rules")
    if not isinstance(rules, list):
        raise Malformed("a policy without rules")
    return EgressPolicy(
        mode=_mode(data),
        rules=tuple(_rule(rule) for rule in rules),
        connections=_number(data, "connections"),
        bytes_per_s=_number(data, "bytes_per_s"),
    )


def decision_to_json(decision: Decision) -> dict[str, object]:
    """A decision as a JSON object."""
    return {**asdict(decision), "verdict": decision.verdict.value}


def decision_from_json(data: Mapping[str, object]) -> Decision:
    """The decision that `decision_to_json` wrote.

    Raises:
        Malformed: it is no decision.
    """
    known = {field.name for field in fields(Decision)}
    if unknown := set(data) - known:
        raise Malformed(f"a decision with {', '.join(sorted(unknown))}")
    at = data.get("at")
    if not isinstance(at, int | float):
        raise Malformed("at is no time")
    return Decision(
        at=float(at),
        sandbox=SandboxId(_text(data, "sandbox")),
        verdict=_verdict(data),
        protocol=_text(data, "protocol"),
        name=_text(data, "name"),
        address=_text(data, "address"),
        port=_number(data, "port"),
        rule=_text(data, "rule"),
        reason=_text(data, "reason"),
        bytes_sent=_number(data, "bytes_sent"),
        bytes_received=_number(data, "bytes_received"),
        count=_number(data, "count"),
    )


def _rule(data: object) -> HostRule | NetRule:
    if not isinstance(data, dict):
        raise Malformed("a rule is an object")
    port = _port(data)
    if "network" in data:
        return NetRule(network=_network(data), port=port, deny=_flag(data, "deny"))
    return HostRule(
        name=_text(data, "name"),
        subdomains=_flag(data, "subdomains"),
        port=port,
        deny=_flag(data, "deny"),
        may_be_private=_flag(data, "may_be_private"),
    )


def _port(data: Mapping[str, object]) -> int | None:
    # A rule whose port got lost would allow more than was written, so the key must be there.
    if "port" not in data:
        raise Malformed("a rule without a port")
    return None if data["port"] is None else _number(data, "port")


def _mode(data: Mapping[str, object]) -> EgressMode:
    try:
        return EgressMode(_text(data, "mode"))
    except ValueError as error:
        raise Malformed(str(error)) from error


def _verdict(data: Mapping[str, object]) -> Verdict:
    try:
        return Verdict(_text(data, "verdict"))
    except ValueError as error:
        raise Malformed(str(error)) from error


def _network(data: Mapping[str, object]) -> str:
    try:
        return str(ipaddress.IPv4Network(_text(data, "network")))
    except ValueError as error:
        raise Malformed(str(error)) from error


def _text(data: Mapping[str, object], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise Malformed(f"{key} is no text")
    return value


def _number(data: Mapping[str, object], key: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Malformed(f"{key} is no number")
    return value


def _flag(data: Mapping[str, object], key: str) -> bool:
    value = data.get(key)
    if not isinstance(value, bool):
        raise Malformed(f"{key} is no flag")
    return value
