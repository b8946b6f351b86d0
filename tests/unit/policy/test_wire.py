"""Policies and decisions survive being written down; what was not written by us is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.model import Decision, EgressMode, EgressPolicy, HostRule, NetRule, SandboxId, Verdict
from k8e.policy import wire

_POLICY = EgressPolicy(
    mode=EgressMode.LIST,
    rules=(
        HostRule(name="example.com", may_be_private=True),
        HostRule(name="example.com", subdomains=True, port=22, deny=True),
        NetRule(network="10.0.0.0/8", port=5432),
    ),
    connections=10,
    bytes_per_s=1000,
)
_DECISION = Decision(
    at=12.5,
    sandbox=SandboxId("one"),
    verdict=Verdict.CLOSED,
    protocol="tls",
    name="example.com",
    address="203.0.113.9",
    port=443,
    rule="example.com",
    bytes_sent=10,
    bytes_received=2**40,
    count=3,
)


def test_a_policy_comes_back_as_it_was() -> None:
    assert wire.from_json(json.loads(json.dumps(wire.to_json(_POLICY)))) == _POLICY
    assert wire.from_json(wire.to_json(EgressPolicy())) == EgressPolicy()


def test_a_decision_comes_back_as_it_was() -> None:
    assert wire.decision_from_json(json.loads(json.dumps(wire.decision_to_json(_DECISION)))) == _DECISION


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "everything"},
        {"mode": None},
        {"rules": None},
        {"rules": {}},
        {"rules": ["example.com"]},
        {"rules": [{"name": "example.com"}]},
        {"rules": [{"name": "example.com", "subdomains": 1, "port": None, "deny": False, "may_be_private": False}]},
        {"rules": [{"network": "10.0.0.0/99", "port": None, "deny": False}]},
        {"rules": [{"network": "::/0", "port": None, "deny": False}]},
        {"rules": [{"network": "10.0.0.0/8", "deny": False}]},
        {"rules": [{"network": "10.0.0.0/8", "port": "22", "deny": False}]},
        {"connections": "many"},
        {"bytes_per_s": True},
    ],
)
def test_a_broken_policy_is_refused_as_a_whole(change: dict[str, Any]) -> None:
    with pytest.raises(wire.Malformed):
        wire.from_json({**wire.to_json(_POLICY), **change})


@pytest.mark.parametrize("change", [{"verdict": "maybe"}, {"at": "now"}, {"port": None}, {"extra": 1}, {"name": b"x"}])
def test_a_broken_decision_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(wire.Malformed):
        wire.decision_from_json({**wire.decision_to_json(_DECISION), **change})


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["mode", "rules", "connections", "bytes_per_s"]), _json)
def test_anything_else_is_a_policy_or_malformed(key: str, value: object) -> None:
    try:
        policy = wire.from_json({**wire.to_json(_POLICY), key: value})
    except wire.Malformed:
        return
    assert wire.from_json(wire.to_json(policy)) == policy
