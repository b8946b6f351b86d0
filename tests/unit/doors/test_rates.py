"""How fast an owner may ask: nothing that a caller can choose makes it another one."""

from __future__ import annotations

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service.errors import RETRY_KEY, answer_for
from k8e.doors.service.rates import READS, Rates
from k8e.doors.service.service import SERVICE
from k8e.errors import Exhausted
from k8e.identity.callers import Role
from tests.support.calls import StraightCall, as_key, as_uid
from tests.support.clock import Clock


def _call(rates: Rates, call: StraightCall, name: str = "Exec", request: object = None) -> bool:
    try:
        with rates(name, call, request or pb.ExecRequest()):
            return True
    except Exhausted:
        return False


def test_a_burst_of_two_seconds_then_the_rate_and_the_refusal_says_when() -> None:
    clock = Clock(0.0)
    rates = Rates(writes_per_s=10, reads_per_s=100, clock=clock)
    assert sum(_call(rates, as_uid(1)) for _ in range(50)) == 20
    with pytest.raises(Exhausted, match=r"retry in 0\.100 s") as refused:
        rates.take("Exec", "uid:1")
    assert dict(answer_for(refused.value)[2])[RETRY_KEY] == "0.100"
    clock.now += 0.1
    assert _call(rates, as_uid(1))
    assert not _call(rates, as_uid(1))


def test_looking_and_doing_are_counted_apart() -> None:
    rates = Rates(writes_per_s=1, reads_per_s=2, clock=Clock(0.0))
    assert sum(_call(rates, as_uid(1)) for _ in range(9)) == 2
    assert sum(_call(rates, as_uid(1), "GetSession") for _ in range(9)) == 4
    assert not _call(rates, as_uid(1), "AttachExec", pb.AttachExecRequest(stop=True))
    assert _call(rates, as_uid(2), "AttachExec", pb.AttachExecRequest(stop=True))


def test_nothing_that_a_caller_chooses_makes_it_another_owner() -> None:
    rates = Rates(writes_per_s=1, reads_per_s=1, clock=Clock(0.0))
    disguises = [
        as_uid(1),
        as_key("one", owner="uid:1"),
        as_key("two", owner="uid:1", via="certificate"),
        as_uid(1, role=Role.ADMIN, speaks_for="uid:2"),
        as_uid(1, role=Role.ADMIN, speaks_for="uid:3"),
    ]
    requests = [pb.CreateSessionRequest(tenant_id=f"tenant-{number}") for number in range(len(disguises))]
    passed = [_call(rates, call, "CreateSession", each) for call, each in zip(disguises, requests, strict=True)]
    assert passed == [True, True, False, False, False]
    assert _call(rates, as_uid(2)), "and nobody else has lost a share by it"
    assert _call(rates, as_uid(2))


def test_zero_is_no_limit() -> None:
    rates = Rates(writes_per_s=0, reads_per_s=0, clock=Clock(0.0))
    assert all(_call(rates, as_uid(1)) for _ in range(1000))
    assert all(_call(rates, as_uid(1), "GetSession") for _ in range(1000))


def test_memory_is_bounded_and_whoever_asked_last_is_remembered() -> None:
    rates = Rates(writes_per_s=1, reads_per_s=1, clock=Clock(0.0))
    while _call(rates, as_uid(1)):
        pass
    for uid in range(2, 12_000):
        _call(rates, as_uid(uid))
        assert uid % 1000 or not _call(rates, as_uid(1))
    assert rates._writes is not None
    assert len(rates._writes._by_name) == 10_000


def test_every_reading_call_is_one_of_the_service() -> None:
    assert {method.name for method in SERVICE.methods} >= READS
