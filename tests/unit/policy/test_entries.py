"""What people write in a list, and what it means."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.errors import InvalidSpec
from k8e.model import HostRule, NetRule
from k8e.policy import entries


@pytest.mark.parametrize(
    ("entry", "rule"),
    [
        ("example.com", HostRule(name="example.com")),
        (" Example.COM. ", HostRule(name="example.com")),
        ("example.com:22", HostRule(name="example.com", port=22)),
        ("example.com.:65535", HostRule(name="example.com", port=65535)),
        ("*.example.com", HostRule(name="example.com", subdomains=True)),
        ("*.example.com:8443", HostRule(name="example.com", subdomains=True, port=8443)),
        ("*.bücher.example", HostRule(name="xn--bcher-kva.example", subdomains=True)),
        ("*.city.kawasaki.jp", HostRule(name="city.kawasaki.jp", subdomains=True)),
        ("*.corp", HostRule(name="corp", subdomains=True)),
        ("!example.com", HostRule(name="example.com", deny=True)),
        ("!*.example.com:443", HostRule(name="example.com", subdomains=True, port=443, deny=True)),
        ("!*.com", HostRule(name="com", subdomains=True, deny=True)),
        ("10.1.0.0/16", NetRule(network="10.1.0.0/16")),
        ("10.1.0.0/16:5432", NetRule(network="10.1.0.0/16", port=5432)),
        ("203.0.113.7", NetRule(network="203.0.113.7/32")),
        ("203.0.113.7:22", NetRule(network="203.0.113.7/32", port=22)),
        ("!10.0.0.0/8", NetRule(network="10.0.0.0/8", deny=True)),
        ("!0.0.0.0/0:25", NetRule(network="0.0.0.0/0", port=25, deny=True)),
        ("!127.0.0.0/8", NetRule(network="127.0.0.0/8", deny=True)),
    ],
)
def test_an_entry_means_a_rule(entry: str, rule: HostRule | NetRule) -> None:
    assert entries.parse(entry) == rule
    assert entries.parse(entries.text(rule)) == rule


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("", "empty"),
        ("!", "empty"),
        ("!!example.com", "no label"),
        ("*", "open network"),
        ("*.", "empty"),
        ("*.*.example.com", "star"),
        ("a.*.example.com", "star"),
        ("*example.com", "star"),
        ("*.com", "anybody can register"),
        ("*.co.uk", "anybody can register"),
        ("*.CO.UK.", "anybody can register"),
        ("*.github.io", "anybody can register"),
        ("*.x.kawasaki.jp", "anybody can register"),
        ("example.com:", "no port"),
        ("example.com:0", "no port"),
        ("example.com:65536", "no port"),
        ("example.com:-1", "no port"),
        ("example.com:+80", "no port"),
        ("example.com:080", "no port"),
        ("example.com:80 ", "no port"),
        ("example.com:https", "no port"),
        ("example.com:８０", "no port"),
        ("example.com:80:80", "IPv6"),
        ("https://example.com", "URL"),
        ("example.com/path", "paths"),
        ("user@example.com", "no label"),
        ("localhost", "own name"),
        ("a.localhost:8080", "own name"),
        ("127.0.0.1", "loopback"),
        ("127.0.0.0/8", "loopback"),
        ("127.1", "ends in a number"),
        ("0x7f000001", "ends in a number"),
        ("169.254.0.0/16", "link-local"),
        ("169.254.169.254", "metadata"),
        ("168.63.129.16", "metadata"),
        ("224.0.0.0/8", "multicast"),
        ("198.18.0.0/16", "stands for a name"),
        ("100.64.0.0/10", "own network"),
        ("0.0.0.0/0", "open network"),
        ("10.0.0.1/8", "host bits"),
        ("10.0.0.0/33", "10.0.0.0/33"),
        ("[2001:db8::]/32", "IPv6"),
        ("2001:db8::/32", "IPv6"),
        ("::1", "IPv6"),
        ("p\u0430ypal.example", "several alphabets"),
    ],
)
def test_what_no_list_may_say_is_refused_with_a_reason(entry: str, reason: str) -> None:
    if entry.endswith(" "):
        entry = f"{entry}x"  # outer blanks are nobody's mistake; inner ones are
    with pytest.raises(InvalidSpec) as refused:
        entries.parse(entry)
    assert refused.value.field == "allowed_hosts"
    assert reason in str(refused.value)


_names = st.sampled_from(["example.com", "a.example.com", "example", "xn--bcher-kva.example"])
_ports = st.none() | st.integers(1, 65535)
_networks = st.builds(
    lambda address, bits: str(ipaddress.IPv4Network((address, bits), strict=False)),
    st.integers(ipaddress.IPv4Address("1.0.0.0").__int__(), ipaddress.IPv4Address("99.0.0.0").__int__()),
    st.integers(8, 32),
)
_rules = st.builds(HostRule, name=_names, subdomains=st.booleans(), port=_ports, deny=st.booleans()) | st.builds(
    NetRule, network=_networks, port=_ports, deny=st.booleans()
)


@given(_rules)
def test_writing_and_reading_are_inverse(rule: HostRule | NetRule) -> None:
    assert entries.parse(entries.text(rule)) == rule


@given(st.text(max_size=60))
def test_any_text_is_a_rule_or_refused(entry: str) -> None:
    try:
        rule = entries.parse(entry)
    except InvalidSpec:
        return
    assert entries.parse(entries.text(rule)) == rule
