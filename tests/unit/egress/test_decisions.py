"""Decisions on their way out: nothing a caller waits for is held back, and no flood gets through."""

from __future__ import annotations

from k8e.egress.decisions import KINDS_PER_S, Collector
from k8e.model import Decision, SandboxId, Verdict


def _decision(name: str, verdict: Verdict, *, sandbox: str = "sb") -> Decision:
    return Decision(at=1.0, sandbox=SandboxId(sandbox), verdict=verdict, protocol="tls", name=name, bytes_sent=2)


def test_the_first_is_told_at_once_and_equal_ones_as_one() -> None:
    told: list[Decision] = []
    collector = Collector(told.append)
    assert [collector.add(_decision("a.example", Verdict.CLOSED)) for _ in range(5)] == [True, *[False] * 4]
    assert [each.count for each in told] == [1]
    collector.flush()
    assert [(each.count, each.bytes_sent) for each in told] == [(1, 2), (4, 8)]


def test_every_denial_is_told_at_once_because_each_may_be_anothers() -> None:
    told: list[Decision] = []
    collector = Collector(told.append)
    for _ in range(3):
        collector.add(_decision("a.example", Verdict.DENIED))
    assert len(told) == 3
    collector.flush()
    assert len(told) == 3


def test_a_flood_of_denials_is_told_in_part_and_counted_in_full() -> None:
    told: list[Decision] = []
    collector = Collector(told.append)
    for number in range(10_000):
        collector.add(_decision("a.example" if number % 2 else f"h{number}.example", Verdict.DENIED))
    assert len(told) == KINDS_PER_S
    collector.add(_decision("b.example", Verdict.DENIED, sandbox="other"))
    assert told[-1].name == "b.example"
    collector.flush()
    assert len(told) <= 2 * KINDS_PER_S + 2
    assert sum(each.count for each in told) == 10_001
