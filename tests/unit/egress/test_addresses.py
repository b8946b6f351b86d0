"""Addresses: the host's own, as its kernel routes them, and those of slots, which go round."""

from __future__ import annotations

import contextlib
import errno
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.egress import routes
from k8e.egress.routes import KernelRoutes
from k8e.egress.ruleset import FIRST_INDEX, GATEWAY, LAST_INDEX, address, ruleset
from k8e.egress.spares import Indices


def test_a_late_answer_to_another_question_is_passed_over() -> None:
    with contextlib.closing(KernelRoutes()) as asked:
        for _ in range(3):
            asked._netlink.send(routes.question(ip_address("127.0.0.1"), 4_000_000))
        assert asked(ip_address("203.0.113.9")) == ""
        assert asked(ip_address("127.0.0.1")) == "one of this machine's own addresses"
        asked._netlink.close()  # whatever happens to it
        assert asked(ip_address("203.0.113.9")) == routes.UNKNOWN
        assert asked(ip_address("203.0.113.9")) == "", "the next one is asked anew"


def _route(*, kind: int, interface: int) -> bytes:
    body = routes.ROUTE.pack(2, 32, 0, 0, 254, 0, 0, kind, 0)
    body += routes.ATTRIBUTE.pack(8, 1) + bytes(4) + routes.ATTRIBUTE.pack(8, 4) + interface.to_bytes(4, sys.byteorder)
    return routes.HEADER.pack(16 + len(body), 24, 0, 7, 0) + body


def _error(number: int) -> bytes:
    return routes.HEADER.pack(36, 2, 0, 7, 0) + routes.ERROR.pack(-number) + bytes(16)


def test_the_kernel_says_which_addresses_are_this_machine() -> None:
    with contextlib.closing(KernelRoutes()) as asked:
        for address in ("127.0.0.1", "127.9.9.9", "::1"):
            assert asked(ip_address(address)) == "one of this machine's own addresses"
        assert asked(ip_address("224.0.0.1")) == "a multicast address"
        assert asked(ip_address("203.0.113.9")) == "", "it leads away, or nowhere"


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (_route(kind=1, interface=2), ""),
        (_route(kind=1, interface=1), "one of this machine's own addresses"),
        (_route(kind=2, interface=1), "one of this machine's own addresses"),
        (_route(kind=3, interface=2), "a broadcast address"),
        (_route(kind=4, interface=2), "one of this machine's own addresses"),
        (_route(kind=5, interface=2), "a multicast address"),
        (_route(kind=9, interface=2), routes.UNKNOWN),
        (_error(errno.ENETUNREACH), ""),
        (_error(errno.EACCES), ""),
        (_error(errno.ENOBUFS), routes.UNKNOWN),
        (_route(kind=1, interface=2)[:20], routes.UNKNOWN),
        (b"", routes.UNKNOWN),
    ],
)
def test_what_the_kernel_does_not_say_clearly_is_not_dialled(answer: bytes, means: str) -> None:
    assert routes.meaning(answer, 7) == means
    assert routes.meaning(answer, 8) == routes.UNKNOWN, "an answer to another question"


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
