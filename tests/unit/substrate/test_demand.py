"""How many warm sandboxes: table tests of the arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.substrate.demand import Demand, builds_to_start


@pytest.mark.parametrize(
    ("ready", "building", "waiting", "target", "expected"),
    [
        (0, 0, 0, 2, 2),
        (2, 0, 0, 2, 0),
        (1, 1, 0, 2, 0),
        (0, 2, 5, 2, 5),
        (0, 7, 5, 2, 0),
        (9, 0, 0, 2, 0),
    ],
)
def test_boots_to_begin(ready: int, building: int, waiting: int, target: int, expected: int) -> None:
    assert builds_to_start(ready=ready, building=building, waiting=waiting, target=target) == expected


def test_a_quiet_pool_stays_at_its_floor() -> None:
    assert Demand().target(now=100.0, low=2, high=16) == 2


def test_a_burst_raises_the_target_and_silence_lowers_it_again() -> None:
    demand = Demand(boot_s=1.0)
    for _ in range(50):
        demand.arrived(100.0)
    assert demand.target(100.0, low=2, high=16) > 2
    assert demand.target(400.0, low=2, high=16) == 2


@given(st.lists(st.floats(min_value=0, max_value=5), max_size=200), st.floats(min_value=0.001, max_value=60))
def test_the_target_never_leaves_its_bounds(gaps: list[float], boot_s: float) -> None:
    demand, now = Demand(boot_s=boot_s), 0.0
    for gap in gaps:
        now += gap
        demand.arrived(now)
    assert 2 <= demand.target(now, low=2, high=16) <= 16
