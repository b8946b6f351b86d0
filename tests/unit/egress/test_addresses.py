"""Addresses: the host's own, as its kernel lists them, and those of slots, which go round."""

from __future__ import annotations

import socket
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from k8e.egress.own import OwnAddresses, local_ipv4, local_ipv6
from k8e.egress.ruleset import FIRST_INDEX, GATEWAY, LAST_INDEX, address, ruleset
from k8e.egress.spares import Indices

_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
     |-- 192.0.2.1
        /32 host LOCAL
     |-- 192.0.2.9
        /32 link UNICAST
"""


def test_the_kernels_listing_is_understood() -> None:
    assert local_ipv4(_TRIE) == {"127.0.0.1", "192.0.2.1"}
    assert local_ipv6("00000000000000000000000000000001 01 80 10 80       lo\n") == {"::1"}


def test_this_host_is_known_by_its_loopback_and_by_what_it_dials_from() -> None:
    own = OwnAddresses()()
    assert "127.0.0.1" in own
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("127.0.0.1", 9))
        assert probe.getsockname()[0] in own


def test_a_host_without_ipv6_has_no_ipv6_addresses(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(_TRIE)
    assert OwnAddresses(tmp_path)() == {"127.0.0.1", "192.0.2.1"}


@given(st.integers(FIRST_INDEX, LAST_INDEX))
def test_every_slot_has_an_address_of_its_own_that_is_not_the_gateways(index: int) -> None:
    found = address(index)
    assert found.startswith("100.")
    assert 64 <= int(found.split(".")[1]) <= 127
    assert found not in (GATEWAY, "100.64.0.0", "100.127.255.255")


def test_indices_do_not_repeat_across_restarts_and_skip_those_in_use(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(3):
        indices = Indices(tmp_path / "next")
        seen += [indices.take(frozenset({FIRST_INDEX + 1})) for _ in range(100)]
    assert len(set(seen)) == len(seen)
    assert FIRST_INDEX + 1 not in seen


def test_indices_go_round(tmp_path: Path) -> None:
    (tmp_path / "next").write_text(str(LAST_INDEX - 1))
    indices = Indices(tmp_path / "next")
    assert [indices.take(frozenset()) for _ in range(4)] == [LAST_INDEX - 1, LAST_INDEX, FIRST_INDEX, FIRST_INDEX + 1]
    (tmp_path / "next").write_text("nonsense")
    assert Indices(tmp_path / "next").take(frozenset()) == FIRST_INDEX


def test_the_rules_name_no_sandbox() -> None:
    assert "100.64.0." not in ruleset().replace(GATEWAY, "")
    assert "ct " not in ruleset(), "nothing is tracked"
