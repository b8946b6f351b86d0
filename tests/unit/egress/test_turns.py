"""Turns for work in Python."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from k8e.egress import turns
from k8e.egress.turns import Turns, Worker


async def test_a_sandbox_with_ten_busy_connections_works_no_more_than_one_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_TURN_S", 0.0)
    done: Counter[str] = Counter()

    async def work(name: str, worker: Worker) -> None:
        while True:
            await worker.breathe()
            done[name] += 1

    async with asyncio.TaskGroup() as tasks:
        many, one = Turns(), Turns()
        working = [tasks.create_task(work("many", Worker(many)), name=str(number)) for number in range(10)]
        working.append(tasks.create_task(work("one", Worker(one)), name="one"))
        while done["one"] < 500:
            await asyncio.sleep(0)
        for task in working:
            task.cancel()
    assert 0 < done["many"] <= 2 * done["one"]


async def test_a_worker_goes_on_without_waiting_while_its_turn_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_TURN_S", 3600.0)
    worker = Worker(Turns())
    await worker.breathe()
    once = worker.breathe()
    with pytest.raises(StopIteration):
        once.send(None)
