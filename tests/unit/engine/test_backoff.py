"""When an agent may be dialled again, on a clock of the test's own."""

from __future__ import annotations

import pytest

from k8e.engine.backoff import Backoff, BackoffSettings

PATIENCE = BackoffSettings(first_s=0.01, most_s=5.0, steady_s=1.0)


def _hung_up_on(times: int, *, after_s: float = 0.0) -> tuple[Backoff, float]:
    """Dialled as early as allowed, each time; and what time it is then."""
    backoff, now = Backoff(PATIENCE), 1000.0
    for _ in range(times):
        now += backoff.wait_s(now)
        backoff.dialled(now)
        now += after_s
        backoff.lost(now)
    return backoff, now


def test_the_first_dial_waits_for_nothing() -> None:
    backoff, now = _hung_up_on(0)
    assert (backoff.wait_s(now), backoff.is_too_soon(now)) == (0.0, False)


def test_after_a_link_that_lasted_the_next_dial_is_immediate() -> None:
    backoff, now = _hung_up_on(9)
    now += backoff.wait_s(now)
    backoff.dialled(now)
    backoff.lost(now + PATIENCE.steady_s)
    assert backoff.wait_s(now + PATIENCE.steady_s) == 0.0


def test_each_link_that_does_not_last_doubles_the_pause_up_to_a_bound() -> None:
    waits = []
    for times in range(1, 20):
        backoff, now = _hung_up_on(times)
        waits.append(backoff.wait_s(now))
    assert waits[:4] == pytest.approx([0.01, 0.02, 0.04, 0.08])
    assert max(waits) == waits[-1] == pytest.approx(PATIENCE.most_s)


def test_nobody_waits_for_the_longest_pause_and_after_it_there_is_another_dial() -> None:
    backoff, now = _hung_up_on(9)
    assert not backoff.is_too_soon(now)
    backoff, now = _hung_up_on(10)
    assert backoff.is_too_soon(now)
    assert not backoff.is_too_soon(now + PATIENCE.most_s + 0.001)


def test_who_asks_rarely_is_never_turned_away() -> None:
    backoff, now = Backoff(PATIENCE), 1000.0
    for _ in range(100):
        assert backoff.wait_s(now) == 0.0
        backoff.dialled(now)
        backoff.lost(now)
        now += 2 * PATIENCE.most_s


def test_links_that_last_just_long_enough_are_dialled_once_in_that_time() -> None:
    backoff, now = _hung_up_on(100, after_s=PATIENCE.steady_s)
    assert now == pytest.approx(1000.0 + 100 * PATIENCE.steady_s)
    assert backoff.wait_s(now) == 0.0
