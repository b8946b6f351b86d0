"""Many idle sessions: what one of them weighs, and whether each still answers quickly."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator

from bench.lab import NO_POOL, RUNTIMES, Lab
from bench.memory import members, pss_bytes, tree
from bench.rows import Row, extra, no_more_than, ratio
from bench.series import Series, timed
from bench.server import ServerUnderTest
from k8e.model import MIB, Runtime

__all__ = ["crowds", "idle_memory"]

_ALIVE = {Runtime.GVISOR: (60, 4), Runtime.CONTAINER: (100, 6)}
_SPREAD = 3.0
_TIMES_BARE = 1.35
_MIB_MORE = 20.0
_ROUNDS = 5
_MAKERS = 4
_LOOKS = 3


def idle_memory(lab: Lab) -> Iterator[Row]:
    """One instance at a time, without a pool: memory that several share would be counted in parts."""
    for runtime in RUNTIMES:
        ours = [_idle_mib(lab, runtime) for _ in range(_LOOKS)]
        theirs = [lab.bare[runtime].idle_bytes() / MIB for _ in range(_LOOKS)]
        a, b = Series.of(ours, unit="MiB"), Series.of(theirs, unit="MiB")
        beside = f"{lab.bare[runtime].name} with sleep"
        if runtime is Runtime.GVISOR:
            yield ratio(f"idle memory, {runtime}", a, b, beside=beside, bound=_TIMES_BARE)
        else:
            more = a.median - b.median
            yield Row(
                name=f"idle memory, {runtime}",
                ours=a,
                theirs=b,
                beside=beside,
                value=more,
                unit="MiB more",
                bound=_MIB_MORE,
            )


def _idle_mib(lab: Lab, runtime: Runtime) -> float:
    with lab.deployment.serving(*NO_POOL) as server, lab.session(server, runtime) as session_id:
        server.client.exec(session_id, ["true"])
        (sandbox,) = server.sandbox_ids()
        return pss_bytes(tree(members(sandbox), name=sandbox)) / MIB


def crowds(lab: Lab) -> Iterator[Row]:
    for runtime in reversed(RUNTIMES):
        with lab.deployment.serving(*NO_POOL) as server:
            yield from _crowd(lab, server, runtime)


def _crowd(lab: Lab, server: ServerUnderTest, runtime: Runtime) -> Iterator[Row]:
    many = lab.scaled(*_ALIVE[runtime])
    first = server.client.create_session(runtime)
    _execs(server, [first] * 3)
    alone = _execs(server, [first] * max(many, lab.n) * _ROUNDS)
    before = server.rss_bytes()
    ids = [first, *_created(server, runtime, many - 1)]
    answered = sum(server.client.exec(each, ["echo", each]).stdout.strip() == each for each in ids)
    server.settle()
    among = _execs(server, ids * _ROUNDS)
    yield no_more_than(f"silent among {many} alive, {runtime}", many - answered + 0.0, 0.5, unit="sessions")
    yield Row(
        name=f"exec p95 among {many} alive, {runtime}",
        ours=among,
        theirs=alone,
        beside="a single session's p95",
        value=among.p95 / alone.p95,
        bound=_SPREAD,
    )
    grown = Series.of([(server.rss_bytes() - before) / MIB / (many - 1)], unit="MiB")
    yield extra(f"server's own memory per session, {runtime}", grown)


def _execs(server: ServerUnderTest, ids: list[str]) -> Series:
    return Series.of([timed(lambda sid=each: server.client.exec(sid, ["true"]))() for each in ids])  # type: ignore[misc]


def _created(server: ServerUnderTest, runtime: Runtime, many: int) -> list[str]:
    with concurrent.futures.ThreadPoolExecutor(_MAKERS) as makers:
        return list(makers.map(lambda _: server.client.create_session(runtime), range(many)))
