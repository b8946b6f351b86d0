"""A session's list from what was asked to what is enforced."""

from __future__ import annotations

import pytest

from k8e.engine import lists
from k8e.engine.settings import EgressSettings
from k8e.errors import Conflict, Denied, InvalidSpec
from k8e.model import EgressMode, EgressPolicy, HostRule, Limits, SessionSpec

_MIRROR = HostRule(name="mirror.example", may_be_private=True)
_SETTINGS = EgressSettings(rules=(_MIRROR, HostRule(name="code.example")))


def _spec(*hosts: str, network: EgressMode = EgressMode.LIST) -> SessionSpec:
    return SessionSpec(allowed_hosts=hosts, network=network)


def test_an_empty_list_means_the_servers() -> None:
    spec = lists.resolved(_spec(), _SETTINGS)
    assert spec.allowed_hosts == ("mirror.example", "code.example")
    assert lists.policy(spec, _SETTINGS) == lists.default_policy(Limits(), _SETTINGS)
    assert lists.policy(spec, _SETTINGS).rules == _SETTINGS.rules


def test_a_list_of_ones_own_takes_its_place() -> None:
    spec = lists.resolved(_spec("Other.Example.", "other.example", "10.0.0.0/8:22"), _SETTINGS)
    assert spec.allowed_hosts == ("other.example", "10.0.0.0/8:22")


def test_the_operators_own_mirror_may_be_private_whoever_lists_it() -> None:
    spec = lists.resolved(_spec("mirror.example", "other.example"), _SETTINGS)
    assert lists.policy(spec, _SETTINGS).rules == (_MIRROR, HostRule(name="other.example"))


def test_caps_become_part_of_the_policy() -> None:
    spec = SessionSpec(limits=Limits(connections=7, network_bytes_per_s=1000))
    assert lists.policy(lists.resolved(spec, _SETTINGS), _SETTINGS) == EgressPolicy(
        mode=EgressMode.LIST, rules=_SETTINGS.rules, connections=7, bytes_per_s=1000
    )


def test_without_a_network_there_is_no_list() -> None:
    spec = lists.resolved(_spec(network=EgressMode.NONE), _SETTINGS)
    assert spec.allowed_hosts == ()
    assert lists.policy(spec, _SETTINGS) == EgressPolicy(mode=EgressMode.NONE)
    with pytest.raises(InvalidSpec):
        lists.resolved(_spec("a.example", network=EgressMode.NONE), _SETTINGS)
    with pytest.raises(Conflict):
        lists.changed(spec, add=["a.example"])


def test_the_open_network_is_the_operators_to_give() -> None:
    asked = _spec(network=EgressMode.OPEN)
    with pytest.raises(Denied):
        lists.resolved(asked, _SETTINGS)
    allowing = EgressSettings(rules=_SETTINGS.rules, allow_open=True)
    assert lists.policy(lists.resolved(asked, allowing), allowing).mode is EgressMode.OPEN


def test_entries_are_added_and_removed() -> None:
    spec = lists.changed(_spec("a.example", "b.example"), add=["C.example", "a.example"], remove=["b.example."])
    assert spec.allowed_hosts == ("a.example", "c.example")


def test_the_whole_list_is_given_anew_or_emptied() -> None:
    assert lists.changed(_spec("a.example"), hosts=["b.example"]).allowed_hosts == ("b.example",)
    emptied = lists.changed(_spec("a.example"))
    assert emptied.allowed_hosts == ()
    assert lists.policy(emptied, _SETTINGS).rules == ()


def test_removing_what_is_not_there_says_what_is() -> None:
    with pytest.raises(InvalidSpec, match=r"a\.example:443 is not on the list: a\.example"):
        lists.changed(_spec("a.example"), remove=["a.example:443"])


def test_a_bad_entry_changes_nothing() -> None:
    with pytest.raises(InvalidSpec, match="anybody can register"):
        lists.changed(_spec("a.example"), add=["b.example", "*.com"])
    with pytest.raises(InvalidSpec, match="256"):
        lists.changed(_spec(), hosts=[f"h{number}.example" for number in range(257)])
