"""Rates are counted per owner."""

from __future__ import annotations

import pytest

from k8e.engine.quotas import CreateRates
from k8e.errors import Exhausted
from k8e.model import OwnerId

A, B = OwnerId("a"), OwnerId("b")


def test_a_burst_is_allowed_then_the_rate_rules_and_says_when() -> None:
    now = [0.0]
    rates = CreateRates(per_s=2.0, burst=3, clock=lambda: now[0])
    for _ in range(3):
        rates.take(A)
    with pytest.raises(Exhausted) as caught:
        rates.take(A)
    assert caught.value.retry_after_s == pytest.approx(0.5)
    now[0] += 0.5
    rates.take(A)


def test_one_owner_cannot_spend_anothers_share() -> None:
    rates = CreateRates(per_s=1.0, burst=1, clock=lambda: 0.0)
    rates.take(A)
    with pytest.raises(Exhausted):
        rates.take(A)
    rates.take(B)
