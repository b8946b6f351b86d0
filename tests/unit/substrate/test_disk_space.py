"""How much is kept free, how what is left is divided, and how often one looks."""

from __future__ import annotations

import itertools

import pytest

from k8e.model import GIB, MIB
from k8e.substrate.local.disk_space import next_round_s, reserve_of, share_of
from k8e.substrate.local.host.ext4 import DiskUsage


def test_the_reserve_is_a_share_of_a_small_disk_and_bounded_on_a_large_one() -> None:
    assert reserve_of(2 * GIB) == 2 * GIB // 20
    assert reserve_of(1000 * GIB) == GIB


def test_one_looks_sooner_the_less_is_left() -> None:
    pauses = [next_round_s(share, 0.0) for share in (-GIB, 0, 100 * MIB, GIB, 100 * GIB)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.1
    assert pauses[-1] == 1.0


def test_a_disk_alone_may_take_all_that_is_left_and_nothing_of_the_reserve() -> None:
    assert share_of([100 * GIB], 2 * GIB, GIB) == 2 * GIB
    assert share_of([100 * GIB], 0, GIB) == 0
    assert share_of([], 2 * GIB, GIB) == 2 * GIB


@pytest.mark.parametrize("disks", [1, 2, 7, 100])
@pytest.mark.parametrize("headroom", [-GIB, 0, MIB, 50 * MIB, 2 * GIB, 500 * GIB])
def test_all_together_may_take_what_is_left_and_half_of_the_reserve(disks: int, headroom: int) -> None:
    for sizes, reserve in itertools.product(([10 * GIB], [0, 64 * MIB, 3 * GIB]), (0, 100 * MIB, GIB)):
        free = list(itertools.islice(itertools.cycle(sizes), disks))
        share = share_of(free, headroom, reserve)
        assert share <= headroom
        assert sum(min(each, share) for each in free if share > 0) <= max(headroom, 0) + reserve // 2


def test_what_some_cannot_take_is_shared_by_the_others() -> None:
    assert share_of([10 * GIB, 10 * GIB], 4 * GIB, 0) == 2 * GIB
    assert share_of([10 * GIB, GIB], 4 * GIB, 0) == 3 * GIB
    assert share_of([10 * GIB, GIB], 50 * GIB, 0) == 50 * GIB, "there is room for all that they could take"


def test_looking_takes_no_more_than_a_fifth_of_the_time() -> None:
    assert next_round_s(0, 0.5) == 2.0


def test_what_is_written_and_not_yet_on_the_hosts_disk_is_promised() -> None:
    assert DiskUsage(used=10 * MIB, backed=4 * MIB, free=0).promised == 6 * MIB
    assert DiskUsage(used=4 * MIB, backed=10 * MIB, free=0).promised == 0
    assert DiskUsage(used=4 * MIB, backed=10 * MIB, free=0).stale == 6 * MIB
