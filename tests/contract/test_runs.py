"""Background runs, on every runtime: polled, followed, killed, bounded."""

from __future__ import annotations

import asyncio

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service.encoding import FairWorker
from k8e.doors.service.runs import RunRpcs
from k8e.engine.process_stream import Output
from k8e.errors import Conflict, NotFound
from k8e.model import (
    MIB,
    Code,
    Command,
    Language,
    Limits,
    Outcome,
    OwnerId,
    Reason,
    Runtime,
    Shell,
    Status,
)
from tests.support.calls import as_uid
from tests.support.cells import OWNER, Cell, CellFactory

pytestmark = pytest.mark.anyio


async def _start(cell: Cell, text: str, **options: object) -> str:
    view = await cell.engine.start_run(OWNER, cell.id, Command(what=Shell(text), **options))  # type: ignore[arg-type]  # test sugar
    return view.run_id


async def _end(cell: Cell, run_id: str) -> Outcome:
    async for item in cell.engine.open_run(OWNER, run_id):
        if isinstance(item, Outcome):
            return item
    raise AssertionError("a run without an outcome")


async def test_a_run_can_be_polled_while_it_runs_and_after(cell: Cell) -> None:
    run_id = await _start(cell, "echo first; until [ -e /workspace/go ]; do sleep 0.02; done; echo second; exit 3")
    while (await cell.engine.poll_run(OWNER, run_id)).stdout != b"first\n":
        await asyncio.sleep(0.01)
    assert (await cell.engine.poll_run(OWNER, run_id)).status is Status.RUNNING
    assert cell.engine.get_session(OWNER, cell.id).background_runs == 1
    await cell.write("/workspace/go", b"")
    outcome = await _end(cell, run_id)
    assert (outcome.status, outcome.exit_code) == (Status.COMPLETED, 3)
    assert (await cell.engine.poll_run(OWNER, run_id)).stdout == b"first\nsecond\n"


async def test_a_silent_program_in_a_waiting_interpreter_is_a_run_at_once(cell: Cell) -> None:
    code = Code(Language.PYTHON, "import time\ntime.sleep(1000)")
    for _ in range(3):
        view = await cell.engine.start_run(OWNER, cell.id, Command(what=code))
        assert (await cell.engine.poll_run(OWNER, view.run_id)).status is Status.RUNNING
        await cell.engine.kill_run(OWNER, view.run_id)
        await _end(cell, view.run_id)


async def test_two_followers_see_the_same_from_any_offset(cell: Cell) -> None:
    run_id = await _start(cell, "for i in $(seq 2000); do echo line $i; done; echo err >&2")

    async def follow(offset: int) -> bytes:
        items = cell.engine.open_run(OWNER, run_id, {1: offset})
        return b"".join([item.payload async for item in items if isinstance(item, Output) and item.channel == 1])

    whole = "".join(f"line {n}\n" for n in range(1, 2001)).encode()
    assert await follow(0) == whole
    assert await follow(1000) == whole[1000:]


async def test_a_run_outlives_no_timeout_unless_it_was_given_one(cell: Cell) -> None:
    run_id = await _start(cell, "sleep 100", timeout_s=0.5)
    assert (await _end(cell, run_id)).status is Status.TIMED_OUT


async def test_a_killed_run_takes_its_children_along(cell: Cell) -> None:
    run_id = await _start(cell, "setsid sleep 9001 & sleep 9002")
    while b"sleep" not in (await cell.sh("cat /proc/[0-9]*/comm")).stdout:
        pass
    await cell.engine.kill_run(OWNER, run_id)
    outcome = await _end(cell, run_id)
    assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.KILLED)
    async with asyncio.timeout(60):  # those beside it go in the same moment, but the kernel decides who goes first
        while b"sleep" in (await cell.sh("cat /proc/[0-9]*/comm")).stdout:
            pass
    with pytest.raises(Conflict):
        await cell.engine.kill_run(OWNER, run_id)


async def test_output_past_the_bound_is_dropped_and_said_so(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime, limits=Limits(run_output_bytes=MIB)) as cell:
        run_id = await _start(cell, "head -c 3000000 /dev/zero; echo end >&2")
        await _end(cell, run_id)
        view = await cell.engine.poll_run(OWNER, run_id)
        assert (len(view.stdout), view.truncated, view.stderr) == (MIB, True, b"end\n")


async def test_strangers_and_unknown_runs_are_not_found(cell: Cell) -> None:
    run_id = await _start(cell, "true")
    with pytest.raises(NotFound):
        await cell.engine.poll_run(OwnerId("uid:777"), run_id)
    with pytest.raises(NotFound):
        await cell.engine.poll_run(OWNER, "run-nothing")
    assert (await _end(cell, run_id)).exit_code == 0


async def test_a_run_ends_with_its_session(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime) as cell:
        run_id = await _start(cell, "sleep 1000")
        following = asyncio.ensure_future(_end(cell, run_id))
        await asyncio.sleep(0)
        await cell.engine.destroy_session(OWNER, cell.id)
        assert (await following).reason is Reason.SANDBOX_LOST
        with pytest.raises(NotFound):
            await cell.engine.poll_run(OWNER, run_id)


async def test_whoever_is_attached_to_a_run_gets_its_exit_when_the_session_ends(
    runtime: Runtime, cells: CellFactory
) -> None:
    async with cells(runtime, limits=Limits(run_output_bytes=MIB)) as cell:
        run_id = await _start(cell, "head -c 3000000 /dev/zero; echo rea''dy >&2; sleep 1000")
        call, is_there = as_uid(0), asyncio.Event()

        async def follow() -> None:
            is_there.set()
            await RunRpcs(cell.engine, FairWorker()).AttachRun(call, pb.AttachRunRequest(run_id=run_id))

        async with asyncio.TaskGroup() as group:
            group.create_task(follow())
            async with asyncio.timeout(60):
                while (await cell.engine.poll_run(OWNER, run_id)).stderr != b"ready\n":
                    await asyncio.sleep(0.01)
            await is_there.wait()
            await cell.engine.destroy_session(OWNER, cell.id)
        last = call.written[-1]
        assert isinstance(last, pb.ExecOutput)
        assert (last.exit.reason, last.exit.truncated) == (Reason.SANDBOX_LOST, True)
