"""Turns between sandboxes, by the clock of the test."""

from __future__ import annotations

import pytest

from k8e.egress.lanes import Bucket, Lane, Ring

_PIECE = 64 * 1024


class _Greedy(Lane[str]):
    __slots__ = ()

    @property
    def is_greedy(self) -> bool:
        return True


def _share(ring: Ring[str], lanes: dict[Lane[str], int], *, steps: int) -> dict[Lane[str], int]:
    """Bytes that each lane moved, every job being ready again at once; time goes on by a piece's time."""
    now = 0.0
    moved = dict.fromkeys(lanes, 0)
    for lane, jobs in lanes.items():
        for number in range(jobs):
            ring.push(lane, f"job {number}")
    for _ in range(steps):
        now += 0.0001
        chosen = ring.next(now)
        if chosen is None:
            continue
        lane, job, allowed = chosen
        amount = _PIECE if allowed is None else min(_PIECE, allowed)
        ring.charge(lane, amount, now)
        moved[lane] += amount
        ring.push(lane, job)
    return moved


def test_a_lane_with_a_hundred_streams_moves_no_more_than_one_with_one() -> None:
    one: Lane[str] = Lane()
    hundred: Lane[str] = Lane()
    moved = _share(Ring(), {one: 1, hundred: 100}, steps=1000)
    assert moved[hundred] == pytest.approx(moved[one], rel=0.05)


def test_a_greedy_lane_leaves_others_the_more_and_alone_has_all() -> None:
    one: Lane[str] = Lane()
    moved = _share(Ring(), {one: 1, (greedy := _Greedy()): 100}, steps=2000)
    assert 0 < moved[greedy] < moved[one] / 2
    alone = _share(Ring(), {(greedy := _Greedy()): 100}, steps=2000)
    assert alone[greedy] == 2000 * _PIECE


def test_every_job_of_a_lane_gets_its_turn() -> None:
    ring: Ring[str] = Ring()
    lane: Lane[str] = Lane()
    for name in "abc":
        ring.push(lane, name)
    seen = []
    for _ in range(6):
        chosen = ring.next(0.0)
        assert chosen is not None
        seen.append(chosen[1])
        ring.charge(lane, 1, 0.0)
        ring.push(lane, chosen[1])
    assert seen == list("abcabc")


def test_an_empty_ring_has_nothing_to_do_and_nothing_to_wait_for() -> None:
    ring: Ring[str] = Ring()
    assert ring.next(0.0) is None
    assert ring.rest_s(0.0) is None


def test_a_limited_lane_moves_what_its_rate_allows_and_says_when_it_goes_on() -> None:
    rate = 1_000_000
    lane: Lane[str] = Lane()
    lane.bucket.set_rate(rate, 0.0)
    ring: Ring[str] = Ring()
    ring.push(lane, "job")
    now, moved = 0.0, 0
    while now < 10:
        chosen = ring.next(now)
        if chosen is None:
            rest_s = ring.rest_s(now)
            assert rest_s is not None
            now += max(rest_s, 0.0001)
            continue
        _, job, allowed = chosen
        assert allowed is not None
        amount = min(_PIECE, allowed)
        ring.charge(lane, amount, now)
        moved += amount
        ring.push(lane, job)
    assert moved == pytest.approx(10 * rate, rel=0.05)


def test_a_bucket_without_a_rate_limits_nothing() -> None:
    bucket = Bucket()
    bucket.take(1 << 40)
    assert bucket.left(0.0) is None


def test_an_idle_bucket_saves_up_a_quarter_of_a_second_at_most() -> None:
    bucket = Bucket()
    bucket.set_rate(1000, 0.0)
    assert bucket.left(3600.0) == 250
