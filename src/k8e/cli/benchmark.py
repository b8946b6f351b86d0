"""`benchmark`: how long sessions take to make and to use, seen from here; a table for people, JSON for programs."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from k8e.cli.output import print_json
from k8e.client.errors import InvalidRequest
from k8e.client.light.calls import CREATE_S, Answer, Calls, encoded

__all__ = ["measure"]

MIB = 1024 * 1024
ODD_MEMORY_MIB = 513
"""Limits that no pool has in store, so that the session starts cold."""
MOST = 1000


class Times:
    """Milliseconds by name, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = {}

    def timed(self, name: str, work: Callable[[], Answer]) -> Answer:
        began = time.perf_counter()
        answer = work()
        self.add(name, time.perf_counter() - began)
        return answer

    def add(self, name: str, seconds: float) -> None:
        self._seen.setdefault(name, []).append(seconds * 1000)

    def summary(self) -> dict[str, dict[str, float]]:
        return {
            name: {
                "n": len(values),
                "median_ms": round(statistics.median(values), 3),
                "min_ms": round(min(values), 3),
                "max_ms": round(max(values), 3),
            }
            for name, values in self._seen.items()
        }


def measure(args: argparse.Namespace, calls: Calls) -> int:
    for name in ("iterations", "pool_size"):
        if not 0 < getattr(args, name) <= MOST:
            raise InvalidRequest(f"{name.replace('_', '-')}: must be 1-{MOST}")
    times = Times()
    for turn in range(args.iterations):
        life(args, calls, times, "cold", {"memory_bytes": (ODD_MEMORY_MIB + turn) * MIB})
    from_pool = sum(warm(args, calls, times) for _ in range(args.iterations))
    for _ in range(args.iterations):
        began = time.perf_counter()
        life(args, calls, Times(), "", {})
        times.add("lifecycle_total", time.perf_counter() - began)
    summary = times.summary()
    show(summary)
    print_json({**summary, "warm_from_pool": from_pool, "warm_made": args.iterations * args.pool_size})
    return 0


def life(args: argparse.Namespace, calls: Calls, times: Times, kind: str, limits: dict[str, int]) -> None:
    began = time.perf_counter()
    made = times.timed(f"{kind}_create", lambda: create(args, calls, limits)).text("session_id")
    try:
        times.timed(f"{kind}_exec", lambda: run_true(calls, made))
        times.add(f"{kind}_total", time.perf_counter() - began)
    finally:
        times.timed(f"{kind}_destroy", lambda: calls.unary("DestroySession", {"session_id": made}))


def warm(args: argparse.Namespace, calls: Calls, times: Times) -> int:
    """A group of sessions at once, as a pool of that size can give them; how many came from one."""
    made: list[Answer] = []
    try:
        for _ in range(args.pool_size):
            made.append(times.timed("warm_create", lambda: create(args, calls, {})))
            times.timed("warm_exec", lambda: run_true(calls, made[-1].text("session_id")))
        return sum(each.one("session").flag("warm") for each in made)
    finally:
        for each in made:
            calls.unary("DestroySession", {"session_id": each.text("session_id")})


def create(args: argparse.Namespace, calls: Calls, limits: dict[str, int]) -> Answer:
    request = {"runtime_class": args.runtime, "limits": limits}
    return calls.unary("CreateSession", request, timeout_s=CREATE_S)


def run_true(calls: Calls, session_id: str) -> Answer:
    return calls.unary("Exec", {"session_id": session_id, "argv": [encoded("true")]})


def show(summary: dict[str, dict[str, float]]) -> None:
    from k8e.cli.table import lines

    rows = [{"what": name, **values} for name, values in summary.items()]
    sys.stderr.write("\n".join(lines(rows)) + "\n")
