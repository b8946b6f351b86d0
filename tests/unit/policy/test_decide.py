"""The table of what a policy allows, and the laws that hold for every policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.model import EgressMode, EgressPolicy, HostRule, NetRule
from k8e.policy import entries
from k8e.policy.decide import decide_address, decide_name


def _policy(*listed: str, mode: EgressMode = EgressMode.LIST) -> EgressPolicy:
    return EgressPolicy(mode=mode, rules=tuple(entries.parse(entry) for entry in listed))


@pytest.mark.parametrize(
    ("listed", "name", "port", "allowed", "rule"),
    [
        (["example.com"], "example.com", 443, True, "example.com"),
        (["example.com"], "example.com", 80, True, "example.com"),
        (["example.com"], "example.com", 22, False, ""),
        (["example.com"], "example.com", None, True, "example.com"),
        (["example.com"], "a.example.com", 443, False, ""),
        (["example.com"], "notexample.com", 443, False, ""),
        (["example.com"], "example.com.evil.test", 443, False, ""),
        (["example.com:22"], "example.com", 22, True, "example.com:22"),
        (["example.com:22"], "example.com", 443, False, ""),
        (["example.com:22"], "example.com", None, True, "example.com:22"),
        (["example.com", "example.com:443"], "example.com", 443, True, "example.com:443"),
        (["*.example.com"], "a.example.com", 443, True, "*.example.com"),
        (["*.example.com"], "a.b.example.com", 443, True, "*.example.com"),
        (["*.example.com"], "example.com", 443, False, ""),
        (["*.example.com"], "evilexample.com", 443, False, ""),
        (["*.example.com:8443"], "a.example.com", 8443, True, "*.example.com:8443"),
        (["*.example.com", "!bad.example.com"], "bad.example.com", 443, False, "!bad.example.com"),
        (["*.example.com", "!bad.example.com"], "good.example.com", 443, True, "*.example.com"),
        (["!bad.example.com", "bad.example.com:22"], "bad.example.com", 22, False, "!bad.example.com"),
        (["bad.example.com", "!*.example.com"], "bad.example.com", 443, False, "!*.example.com"),
        (["example.com", "!example.com:80"], "example.com", 443, True, "example.com"),
        (["example.com", "!example.com:80"], "example.com", 80, False, "!example.com:80"),
        (["example.com", "!example.com:80"], "example.com", None, True, "example.com"),
        (["example.com:80", "!example.com:80"], "example.com", None, False, "!example.com:80"),
        (["example.com:22", "!example.com:80"], "example.com", 443, False, ""),
        (["10.0.0.0/8"], "example.com", 443, False, ""),
        ([], "example.com", 443, False, ""),
    ],
)
def test_the_list_decides_names(listed: list[str], name: str, port: int | None, allowed: bool, rule: str) -> None:
    answer = decide_name(_policy(*listed), name, port)
    assert (answer.allowed, answer.rule) == (allowed, rule)
    assert bool(answer.reason) is not allowed


@pytest.mark.parametrize(
    ("listed", "address", "port", "allowed", "rule"),
    [
        (["10.1.0.0/16"], "10.1.2.3", 5432, True, "10.1.0.0/16"),
        (["10.1.0.0/16"], "::ffff:10.1.2.3", 5432, True, "10.1.0.0/16"),
        (["10.1.0.0/16"], "10.2.2.3", 5432, False, ""),
        (["10.1.0.0/16:5432"], "10.1.2.3", 5432, True, "10.1.0.0/16:5432"),
        (["10.1.0.0/16:5432"], "10.1.2.3", 22, False, ""),
        (["10.1.0.0/16", "!10.1.2.0/24"], "10.1.2.3", 22, False, "!10.1.2.0/24"),
        (["10.1.0.0/16", "!10.1.2.0/24"], "10.1.3.3", 22, True, "10.1.0.0/16"),
        (["10.1.0.0/16", "!10.1.2.0/24:22"], "10.1.2.3", 80, True, "10.1.0.0/16"),
        (["169.0.0.0/8"], "169.254.169.254", 80, False, ""),
        (["169.0.0.0/8"], "169.254.1.1", 80, False, ""),
        (["169.0.0.0/8"], "169.1.1.1", 80, True, "169.0.0.0/8"),
        (["example.com"], "203.0.113.9", 443, False, ""),
        (["10.1.0.0/16"], "not an address", 443, False, ""),
        ([], "203.0.113.9", 443, False, ""),
    ],
)
def test_the_list_decides_addresses(listed: list[str], address: str, port: int, allowed: bool, rule: str) -> None:
    answer = decide_address(_policy(*listed), address, port)
    assert (answer.allowed, answer.rule) == (allowed, rule)
    assert bool(answer.reason) is not allowed


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("203.0.113.9", True),
        ("10.1.2.3", False),
        ("172.31.255.255", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("198.18.0.1", False),
        ("100.64.0.1", False),
        ("2001:db8::1", True),
        ("fd00::1", False),
    ],
)
def test_the_open_network_is_the_public_one(address: str, allowed: bool) -> None:
    policy = _policy(mode=EgressMode.OPEN)
    assert decide_address(policy, address, 443).allowed is allowed


def test_the_open_network_reaches_every_name_and_port_but_the_denied() -> None:
    policy = _policy("!bad.example", "!half.example:25", mode=EgressMode.OPEN)
    assert decide_name(policy, "good.example", 12345).allowed
    assert decide_name(policy, "half.example", None).allowed
    assert not decide_name(policy, "half.example", 25).allowed
    assert not decide_name(policy, "bad.example", None).allowed
    assert not decide_name(policy, "bad.example", 443).allowed


def test_no_network_reaches_nothing_whatever_is_listed() -> None:
    listed = ("example.com", "10.0.0.0/8")
    closed, control = _policy(*listed, mode=EgressMode.NONE), _policy(*listed)
    assert decide_name(control, "example.com", 443).allowed
    assert decide_address(control, "10.0.0.1", 443).allowed
    assert not decide_name(closed, "example.com", 443).allowed
    assert not decide_address(closed, "10.0.0.1", 443).allowed


@pytest.mark.parametrize("mode", [EgressMode.LIST, EgressMode.OPEN])
def test_only_the_operators_own_rule_makes_a_private_address_harmless(mode: EgressMode) -> None:
    own = HostRule(name="mirror.example", may_be_private=True)
    policy = EgressPolicy(mode=mode, rules=(own, entries.parse("mirror.example:22"), entries.parse("other.example")))
    assert decide_name(policy, "mirror.example", 443).may_be_private
    assert decide_name(policy, "mirror.example", None).may_be_private
    assert not decide_name(policy, "mirror.example", 22).may_be_private
    assert not decide_name(policy, "other.example", 443).may_be_private


def test_a_rule_that_names_the_port_says_so() -> None:
    policy = _policy("plain.example", "named.example:443", "10.0.0.0/8:22")
    assert not decide_name(policy, "plain.example", 443).port_named
    assert decide_name(policy, "named.example", 443).port_named
    assert decide_address(policy, "10.0.0.1", 22).port_named


_NAMES = ["example.com", "a.example.com", "b.a.example.com", "other.test", "com"]
_ADDRESSES = ["10.0.0.1", "10.1.2.3", "203.0.113.9", "127.0.0.1", "169.254.169.254", "::1", "fe80::1", "198.18.0.3"]
_ports = st.none() | st.sampled_from([22, 80, 443])
_rules = st.builds(
    HostRule, name=st.sampled_from(_NAMES), subdomains=st.booleans(), port=_ports, deny=st.booleans()
) | st.builds(
    NetRule,
    network=st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "203.0.113.0/24", "0.0.0.0/0"]),
    port=_ports,
    deny=st.booleans(),
)
_policies = st.builds(EgressPolicy, mode=st.sampled_from(EgressMode), rules=st.lists(_rules, max_size=6).map(tuple))


@given(_policies, st.sampled_from(_NAMES), st.sampled_from([22, 80, 443, 8080]))
def test_a_name_resolves_exactly_when_some_port_of_it_is_reached(policy: EgressPolicy, name: str, port: int) -> None:
    reached = [decide_name(policy, name, each).allowed for each in (22, 80, 443, 8080)]
    assert decide_name(policy, name, None).allowed is any(reached)
    assert decide_name(policy, name, port).allowed in reached


@given(_policies, _rules, st.sampled_from(_NAMES), _ports)
def test_one_more_denial_never_allows_more(
    policy: EgressPolicy, rule: HostRule | NetRule, name: str, port: int
) -> None:
    denial = entries.parse(f"!{entries.text(rule).removeprefix('!')}")
    stricter = EgressPolicy(mode=policy.mode, rules=(*policy.rules, denial))
    assert decide_name(policy, name, port).allowed >= decide_name(stricter, name, port).allowed


@given(_policies, st.sampled_from(_NAMES), _ports)
def test_the_order_of_the_list_does_not_matter(policy: EgressPolicy, name: str, port: int) -> None:
    turned = EgressPolicy(mode=policy.mode, rules=policy.rules[::-1])
    assert decide_name(policy, name, port).allowed is decide_name(turned, name, port).allowed


@given(_policies, st.sampled_from(_ADDRESSES), st.sampled_from([22, 443]))
def test_no_policy_reaches_the_machine_or_its_metadata(policy: EgressPolicy, address: str, port: int) -> None:
    answer = decide_address(policy, address, port)
    if address in {"127.0.0.1", "169.254.169.254", "::1", "fe80::1", "198.18.0.3"}:
        assert not answer.allowed
