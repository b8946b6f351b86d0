"""Who has to go when there is no room for all that wait."""

from __future__ import annotations

from k8e.pending_connections import PendingConnections


def test_whoever_brings_too_many_loses_the_oldest_of_them() -> None:
    crowd: PendingConnections[str] = PendingConnections(each=2, all=0)
    assert [crowd.add("a", member) for member in ("1", "2", "3")] == [None, None, "1"]
    assert crowd.add("b", "4") is None
    assert (crowd.of("a"), crowd.of("b"), len(crowd)) == (2, 1, 3)


def test_where_all_is_full_whoever_has_the_most_loses_the_oldest() -> None:
    crowd: PendingConnections[str] = PendingConnections(each=0, all=3)
    crowd.add("b", "early")
    assert [crowd.add("a", member) for member in ("1", "2", "3", "4")] == [None, None, "1", "2"]
    assert crowd.of("b") == 1


def test_one_that_waits_no_longer_makes_room() -> None:
    crowd: PendingConnections[str] = PendingConnections(each=1, all=0)
    crowd.add("a", "1")
    crowd.discard("a", "1")
    crowd.discard("a", "1")
    assert (crowd.add("a", "2"), len(crowd)) == (None, 1)


def test_the_oldest_can_be_sent_away_for_another_reason() -> None:
    crowd: PendingConnections[str] = PendingConnections(each=0, all=0)
    assert crowd.pop() is None
    for whose, member in (("a", "1"), ("b", "2"), ("b", "3")):
        crowd.add(whose, member)
    assert (crowd.pop("a"), crowd.pop("a"), crowd.pop(), crowd.pop(), crowd.pop()) == ("1", None, "2", "3", None)
