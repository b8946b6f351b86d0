"""Sessions without a warm sandbox: one at a time, and many at once."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator

from bench.lab import NO_POOL, RUNTIMES, Lab, odd_memory
from bench.rows import Row, extra, no_more_than, ratio
from bench.series import Series, interleaved
from bench.server import ServerUnderTest
from k8e.client import AsyncSandboxClient
from k8e.model import Runtime

__all__ = ["burst", "cold_starts"]

_COLD = {Runtime.GVISOR: 1.5, Runtime.CONTAINER: 2.0}
_AT_ONCE = 50
_POOL = 10
_QUEUE = 1.1
"""Both sides boot the same sandboxes two at a time and each is measured once: a tenth between them is noise."""


def cold_starts(lab: Lab) -> Iterator[Row]:
    """From nothing to the first command's end."""
    turns = itertools.count()
    with lab.deployment.serving(*NO_POOL) as server:
        for runtime in RUNTIMES:
            bare = lab.bare[runtime]
            with bare.lives() as life:
                seen = interleaved(
                    {"ours": lambda kind=runtime: _cold(server, kind, next(turns)), "theirs": life},  # type: ignore[misc]
                    n=lab.n,
                )
            beside = f"{bare.name} run"
            yield ratio(f"cold start, {runtime}", seen["ours"], seen["theirs"], beside=beside, bound=_COLD[runtime])


def _cold(server: ServerUnderTest, runtime: Runtime, turn: int) -> float:
    began = time.perf_counter()
    session_id = server.client.create_session(runtime, limits=odd_memory(turn))
    server.client.exec(session_id, ["true"])
    took = (time.perf_counter() - began) * 1000
    server.client.destroy_session(session_id)
    return took


def burst(lab: Lab) -> Iterator[Row]:
    """Many sessions at once from a pool that has only some; the misses beside the same cold starts in a queue."""
    many, pool = lab.scaled(_AT_ONCE, 10), lab.scaled(_POOL, 2)
    with lab.deployment.serving("--pool-min", str(pool)) as server:
        server.settle(ready=pool)
        wall_ms, took = asyncio.run(_at_once(server, many))
    missed = sorted(ms for ms, warm in took if not warm)
    hit = sorted(ms for ms, warm in took if warm)
    cores = os.cpu_count() or 1
    with lab.deployment.serving(*NO_POOL) as server:
        queued_ms = asyncio.run(_queued(server, len(missed), at_once=cores))
    note = f"{len(hit)} warm, {len(missed)} cold, all succeeded"
    yield extra(f"{many} sessions at once, pool of {pool}", Series.of([wall_ms]), note=note)
    if hit:
        yield extra("of these, warm", Series.of(hit))
    yield Row(
        name="of these, cold, to a queue",
        ours=Series.of(missed),
        theirs=Series.of([queued_ms]),
        beside=f"{len(missed)} cold starts, {cores} at a time",
        value=missed[-1] / queued_ms,
        bound=_QUEUE,
        note="the last miss beside the whole queue's time",
    )
    yield no_more_than(f"failures among {many} at once", many - len(took) + 0.0, 0.5, unit="sessions")


async def _at_once(server: ServerUnderTest, many: int) -> tuple[float, list[tuple[float, bool]]]:
    """The whole time, and for each session its own and whether it was warm."""
    async with AsyncSandboxClient(target=server.target()) as client:
        await client.workspaces()
        began = time.perf_counter()

        async def one() -> tuple[float, str]:
            session_id = await client.create_session()
            return (time.perf_counter() - began) * 1000, session_id

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(), name=f"create {number}") for number in range(many)]
        wall_ms = (time.perf_counter() - began) * 1000
        made = [task.result() for task in tasks]
        for _, session_id in made:
            answer = await client.exec(session_id, ["echo", session_id])
            if answer.stdout.strip() != session_id:
                raise AssertionError(f"session {session_id} does not answer: {answer}")
        return wall_ms, [(ms, (await client.get(session_id)).warm) for ms, session_id in made]


async def _queued(server: ServerUnderTest, many: int, *, at_once: int) -> float:
    """As many cold starts, a few at a time."""
    gate = asyncio.Semaphore(at_once)
    async with AsyncSandboxClient(target=server.target()) as client:
        # The image's first start prepares what all later ones share.
        await client.create_session(limits=odd_memory(0))
        began = time.perf_counter()

        async def one(turn: int) -> None:
            async with gate:
                await client.create_session(limits=odd_memory(turn))

        async with asyncio.TaskGroup() as group:
            for turn in range(1, many + 1):
                group.create_task(one(turn), name=f"create {turn}")
        return (time.perf_counter() - began) * 1000
