"""The addresses that a name may lead to, and those that it may not, whatever the list says."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.model import EgressMode, EgressPolicy
from k8e.policy import entries, targets

_EMPTY = EgressPolicy(mode=EgressMode.LIST)


def _refusal(
    address: str, *listed: str, own: tuple[str, ...] = (), may_be_private: bool = False, port: int = 443
) -> str:
    policy = EgressPolicy(mode=EgressMode.LIST, rules=tuple(entries.parse(entry) for entry in listed))
    mine = {ipaddress.ip_address(each) for each in own}
    route = {each: "one of this machine's own addresses" for each in mine}.get
    return targets.refusal(
        address, route=lambda each: route(each, ""), policy=policy, may_be_private=may_be_private, port=port
    )


@pytest.mark.parametrize(
    "address",
    [
        "203.0.113.9",  # documentation ranges are in use here and there
        "192.0.2.1",
        "198.51.100.1",
        "8.8.8.8",
        "2001:db8::1",
        "2606:4700::1111",
        "::ffff:203.0.113.9",
        "64:ff9b::203.0.113.9",
    ],
)
def test_public_addresses_may_be_dialled(address: str) -> None:
    assert _refusal(address) == ""


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.0.9", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::127.0.0.1", "loopback"),
        ("64:ff9b::7f00:1", "loopback"),
        ("2002:7f00:1::", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("::", "unspecified"),
        ("169.254.169.254", "metadata"),
        ("::ffff:169.254.169.254", "metadata"),
        ("168.63.129.16", "metadata"),
        ("100.100.100.200", "metadata"),
        ("192.0.0.192", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "reserved"),
        ("240.0.0.1", "reserved"),
        ("198.18.0.1", "stands for a name"),
        ("198.19.255.255", "stands for a name"),
        ("100.64.0.1", "own network"),
        ("100.127.255.255", "own network"),
        ("2001::1", "tunnel"),
        ("4000::1", "reserved"),
        ("100::1", "reserved"),
        ("1.2.3", "not an address"),
        ("", "not an address"),
        ("example.com", "not an address"),
    ],
)
def test_some_addresses_are_dialled_for_nobody(address: str, reason: str) -> None:
    assert reason in _refusal(address)
    assert reason in _refusal(address, may_be_private=True)
    assert reason in _refusal(address, "169.0.0.0/8", "100.0.0.0/8", "198.0.0.0/8")


@pytest.mark.parametrize("address", ["10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "::ffff:10.1.2.3"])
def test_private_addresses_are_dialled_only_where_somebody_said_so(address: str) -> None:
    assert "private" in _refusal(address)
    assert _refusal(address, may_be_private=True) == ""
    assert _refusal(address, "10.1.0.0/16", "172.16.0.0/12", "192.168.0.0/16") == ""
    assert "private" in _refusal(address, "10.2.0.0/16", "172.32.0.0/16")
    assert "private" in _refusal(address, "10.1.0.0/16:22", "172.16.0.0/12:22", "192.168.0.0/16:22")


@pytest.mark.parametrize("address", ["fd12::1", "fec0::1"])
def test_private_addresses_of_the_newer_kind_too(address: str) -> None:
    assert "private" in _refusal(address)
    assert _refusal(address, may_be_private=True) == ""


@pytest.mark.parametrize(("address", "own"), [("203.0.113.9", "203.0.113.9"), ("::ffff:10.0.0.5", "10.0.0.5")])
def test_the_machines_own_addresses_are_dialled_for_nobody(address: str, own: str) -> None:
    assert _refusal(address, may_be_private=True) == ""
    for listed in ((), ("10.0.0.0/8", "203.0.113.0/24")):
        assert "own addresses" in _refusal(address, *listed, own=(own,), may_be_private=True)


def test_a_denied_network_is_denied_to_names_too() -> None:
    assert _refusal("203.0.113.9", "!198.51.100.0/24") == ""
    assert "denies" in _refusal("203.0.113.9", "!203.0.113.0/24")
    assert "denies" in _refusal("10.1.2.3", "!10.1.2.0/24", "10.0.0.0/8", may_be_private=True)
    assert _refusal("203.0.113.9", "!203.0.113.0/24:25") == ""


@given(st.ip_addresses(v=4))
def test_wrapping_an_address_changes_nothing(address: ipaddress.IPv4Address) -> None:
    plain = _refusal(str(address))
    assert _refusal(f"::ffff:{address}") == plain
    assert _refusal(f"64:ff9b::{address}") == plain
    assert _refusal(str(ipaddress.IPv6Address((0x2002 << 112) | int(address) << 80))) == plain


@given(st.ip_addresses())
def test_nobody_reaches_what_is_not_the_worlds(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
        assert targets.refusal(str(address), route=lambda _: "", policy=_EMPTY, may_be_private=True, port=443)
