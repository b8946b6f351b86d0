"""What background runs leave with the engine: ends that are written down, bounds on what is kept, and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings, KeptLimits
from k8e.errors import NotFound, StoreFailed
from k8e.model import (
    MIB,
    Command,
    Outcome,
    Runtime,
    SessionSpec,
    Shell,
    Status,
)
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, Cell
from tests.support.remembered import remembers
from tests.support.restartable_engine import RestartableEngine, Write
from tests.support.substrates import over

pytestmark = pytest.mark.anyio


async def _end(cell: Cell, run_id: str) -> Outcome:
    async for item in cell.engine.open_run(OWNER, run_id):
        if isinstance(item, Outcome):
            return item
    raise AssertionError("a run without an outcome")


async def _start(cell: Cell, text: str, **options: object) -> str:
    view = await cell.engine.start_run(OWNER, cell.id, Command(what=Shell(text), **options))  # type: ignore[arg-type]  # test sugar
    return view.run_id


class _Refusal:
    """A disk that is full as often as told, and then has room again."""

    def __init__(self, *, times: int) -> None:
        self._times = times

    async def __call__(self, write: Write) -> None:
        if self._times:
            self._times -= 1
            raise StoreFailed("the disk is full")
        await write()


@pytest.mark.parametrize(("times", "is_written"), [(0, True), (2, True), (1000, False)])
async def test_the_end_of_a_run_is_the_true_one_whether_it_can_be_written_down_or_not(
    runtime: Runtime, restartable: RestartableEngine, monkeypatch: pytest.MonkeyPatch, times: int, is_written: bool
) -> None:
    monkeypatch.setattr("k8e.engine.store.store.RETRY_PAUSES_S", (0.0,) * 4)
    writes = restartable.at_writing
    # Nobody tends it: from the beginning of the run on, its end is all that there is to write down.
    async with restartable.open(reap_every_s=3600.0) as engine:
        cell = Cell(engine, (await engine.create_session(OWNER, SessionSpec(runtime=runtime))).session_id)
        run_id = await _start(cell, "until [ -e /workspace/go ]; do sleep 0.02; done; echo out; exit 3")
        restartable.at_writing = _Refusal(times=times)
        await cell.write("/workspace/go", b"")
        async with asyncio.timeout(60):
            outcome = await _end(cell, run_id)
        assert (outcome.status, outcome.exit_code) == (Status.COMPLETED, 3)
        assert (await engine.poll_run(OWNER, run_id)).outcome == outcome
        # What is not written down here must be kept where the next server can ask for it, and only that.
        assert await remembers(cell, run_id) is not is_written
    restartable.at_writing = writes
    async with restartable.open() as engine, asyncio.timeout(60):
        assert await _end(Cell(engine, cell.id), run_id) == outcome
        assert (await engine.poll_run(OWNER, run_id)).stdout == b"out\n"


@pytest.mark.parametrize("target", ["/no/such/directory/file", "1"], ids=["no file", "a link to itself"])
async def test_a_run_goes_on_to_its_end_when_its_output_cannot_be_kept(
    cell: Cell, engine_dir: Path, target: str
) -> None:
    run_id = await _start(cell, "until [ -e /workspace/go ]; do sleep 0.05; done; echo lost; exit 3")
    kept = engine_dir / "sessions" / str(cell.engine.get_session(OWNER, cell.id).sandbox) / run_id
    kept.mkdir(parents=True)
    (kept / "1").symlink_to(target)
    await cell.write("/workspace/go", b"")
    async with asyncio.timeout(60):
        assert (await _end(cell, run_id)).exit_code == 3
    view = await cell.engine.poll_run(OWNER, run_id)
    assert (view.status, view.truncated, view.stdout) == (Status.COMPLETED, True, b"")


@asynccontextmanager
async def _opened_with(data_dir: Path, kept: KeptLimits) -> AsyncIterator[Engine]:
    """An engine that keeps its sessions for the next one, unless the test fails."""
    settings = EngineSettings(data_dir=data_dir / "engine", kept=kept)
    async with Engine.open(settings, over(BareMachine(data_dir / "substrate"))) as engine:
        try:
            yield engine
        except BaseException:
            await engine.destroy_all()
            raise


async def test_what_runs_leave_on_the_host_is_bounded_for_each_session(data_dir: Path) -> None:
    kept = KeptLimits(runs_per_session=3, output_per_session=5 * MIB, output_per_owner=8 * MIB)
    async with _opened_with(data_dir, kept) as engine:
        spec = SessionSpec(runtime=Runtime.CONTAINER)
        here, there = [Cell(engine, (await engine.create_session(OWNER, spec)).session_id) for _ in range(2)]
        runs = []
        for _ in range(6):
            runs.append(await _start(here, "head -c 2000000 /dev/zero"))
            await _end(here, runs[-1])
            assert await _takes_at_most(data_dir, kept.output_per_session)
        newest = await engine.poll_run(OWNER, runs[-1])
        assert (len(newest.stdout), newest.truncated) == (min(2000000, MIB), True)
        assert [run.run_id for run in engine.list_runs(OWNER, here.id)] == runs[-3:]
        oldest = await engine.poll_run(OWNER, runs[-3])
        assert (oldest.stdout, oldest.truncated, oldest.outcome and oldest.outcome.exit_code) == (b"", True, 0)
        with pytest.raises(NotFound):
            await engine.poll_run(OWNER, runs[0])
        other = await _start(there, "head -c 5000000 /dev/zero")
        await _end(there, other)
        assert await _takes_at_most(data_dir, kept.output_per_owner)
        assert (await engine.poll_run(OWNER, other)).stdout == bytes(MIB), "the newest of the owner's is kept"
    async with _opened_with(data_dir, kept) as engine:
        assert await _takes_at_most(data_dir, kept.output_per_owner)
        assert (await engine.poll_run(OWNER, runs[-3])).truncated
        more = await _start(Cell(engine, there.id), "head -c 4000000 /dev/zero")
        await _end(Cell(engine, there.id), more)
        assert await _takes_at_most(data_dir, kept.output_per_owner)
        await engine.destroy_all()
    assert await _takes_at_most(data_dir, 0)


async def test_a_run_that_finds_no_room_goes_on_without_it_and_says_so(data_dir: Path) -> None:
    async with _opened_with(data_dir, KeptLimits(output_per_session=MIB)) as engine:
        view = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER))
        cell = Cell(engine, view.session_id)
        first = await _start(cell, "head -c 900000 /dev/zero; sleep 600")
        async with asyncio.timeout(60):
            while len((await engine.poll_run(OWNER, first)).stdout) < 900000:
                await asyncio.sleep(0.01)
        second = await _start(cell, "head -c 900000 /dev/zero; exit 3")
        assert (await _end(cell, second)).exit_code == 3
        assert (await engine.poll_run(OWNER, second)).truncated
        assert await _takes_at_most(data_dir, MIB)
        assert len((await engine.poll_run(OWNER, first)).stdout) == 900000, "what runs keeps its own"
        await engine.destroy_all()


async def test_runs_that_write_at_once_keep_no_more_together_than_one_alone(data_dir: Path) -> None:
    async with _opened_with(data_dir, KeptLimits(output_per_session=MIB)) as engine:
        view = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER))
        cell = Cell(engine, view.session_id)
        waiting = "until [ -e /workspace/go ]; do sleep 0.02; done; head -c 600000 /dev/zero; sleep 600"
        for _ in range(4):
            await _start(cell, waiting)
        await cell.write("/workspace/go", b"")
        async with asyncio.timeout(60):
            # At most one of them is kept whole.
            while sum(each.truncated for each in engine.list_runs(OWNER, cell.id)) < 3 or _on_disk(data_dir) < MIB:
                await asyncio.sleep(0.01)
        assert _on_disk(data_dir) == MIB
        await engine.destroy_all()


@asynccontextmanager
async def _stuck_writing(cell: Cell, engine_dir: Path) -> AsyncIterator[tuple[str, Path]]:
    """A run whose output is being written, to a pipe that nobody reads yet: its id, and that pipe."""
    run_id = await _start(cell, "until [ -e /workspace/go ]; do sleep 0.02; done; echo out; exit 3")
    pipe = engine_dir / "sessions" / str(cell.engine.get_session(OWNER, cell.id).sandbox) / run_id / "1"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    inode = os.open(pipe, os.O_PATH)
    try:
        await cell.write("/workspace/go", b"")
        async with asyncio.timeout(60):
            while not cell.engine.polled_bytes(OWNER, run_id):  # counted in the moment in which its writing begins
                await asyncio.sleep(0.01)
        yield run_id, pipe
    finally:
        # However the test went, and wherever the pipe is: nobody waits for ever to write to it.
        os.close(os.open(f"/proc/self/fd/{inode}", os.O_RDONLY | os.O_NONBLOCK))
        os.close(inode)


async def test_a_disk_that_is_slow_holds_up_nobody_who_does_not_need_it(cell: Cell, engine_dir: Path) -> None:
    async with _stuck_writing(cell, engine_dir) as (run_id, pipe):
        assert (await cell.engine.extend_session(OWNER, cell.id, ttl_s=500)).session_id == cell.id
        assert await cell.read("/workspace/go") == b""
        (view,) = cell.engine.list_runs(OWNER, cell.id)
        assert (view.run_id, view.status) == (run_id, Status.RUNNING), "its end is not told before its output is kept"
        assert await asyncio.to_thread(pipe.read_bytes) == b"out\n"
        async with asyncio.timeout(60):
            while cell.engine.list_runs(OWNER, cell.id)[0].status is not Status.COMPLETED:
                await asyncio.sleep(0.01)


async def test_a_session_that_ends_while_its_output_is_written_leaves_nothing(
    cell: Cell, engine_dir: Path, engine_machine: BareMachine
) -> None:
    sandbox = cell.engine.get_session(OWNER, cell.id).sandbox
    async with _stuck_writing(cell, engine_dir) as (_, pipe), asyncio.TaskGroup() as group:
        group.create_task(cell.engine.destroy_session(OWNER, cell.id), name="destroy")
        async with asyncio.timeout(60):
            while sandbox in await engine_machine.survivors():
                await asyncio.sleep(0.01)
        for _ in range(200):
            # Turns for whoever would now remove what is still being written.
            await asyncio.to_thread(os.getpid)
        assert pipe.exists()
        await asyncio.to_thread(pipe.read_bytes)
    assert not pipe.parent.parent.exists()


async def test_a_session_that_has_no_room_takes_none_from_its_owners_others(data_dir: Path) -> None:
    async with _opened_with(data_dir, KeptLimits(output_per_session=MIB, output_per_owner=100 * MIB)) as engine:
        spec = SessionSpec(runtime=Runtime.CONTAINER)
        here, there = [Cell(engine, (await engine.create_session(OWNER, spec)).session_id) for _ in range(2)]
        kept = await _start(there, "head -c 500000 /dev/zero")
        await _end(there, kept)
        chatty = await _start(here, "head -c 3000000 /dev/zero")
        await _end(here, chatty)
        assert (await engine.poll_run(OWNER, chatty)).truncated
        assert len((await engine.poll_run(OWNER, kept)).stdout) == 500000
        await engine.destroy_all()


async def test_runs_are_listed_with_what_they_run_also_after_a_restart(data_dir: Path) -> None:
    async with _opened_with(data_dir, KeptLimits()) as engine:
        view = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER))
        cell = Cell(engine, view.session_id)
        began = time.time()
        first = await _start(cell, "echo  out;\n exit 3 # " + "x" * 1000)
        await _end(cell, first)
        second = await _start(cell, "sleep 1000")
    async with _opened_with(data_dir, KeptLimits()) as engine:
        ended, running = engine.list_runs(OWNER, cell.id)
        assert (ended.run_id, ended.status, running.run_id, running.status) == (
            first,
            Status.COMPLETED,
            second,
            Status.RUNNING,
        )
        assert ended.command.startswith("echo out; exit 3 # xxx")
        assert (len(ended.command), running.command) == (200, "sleep 1000")
        assert began - 1 <= ended.started_at <= running.started_at <= time.time()
        await engine.destroy_all()


async def test_a_run_that_was_cut_stays_cut_after_a_restart(data_dir: Path) -> None:
    # More than the sandbox keeps for whoever attaches again: some of the middle is gone.
    script = "head -c 8000000 /dev/zero; touch there; while [ ! -e go ]; do sleep 0.05; done; echo the end"
    async with _opened_with(data_dir, KeptLimits(output_per_session=MIB // 2)) as engine:
        view = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER))
        cell = Cell(engine, view.session_id)
        run_id = await _start(cell, script)
        await cell.sh("while [ ! -e there ]; do sleep 0.05; done")
        polled = await engine.poll_run(OWNER, run_id)
        assert polled.truncated, polled.outcome
        before = len((await engine.poll_run(OWNER, run_id)).stdout)
    async with _opened_with(data_dir, KeptLimits()) as engine:
        cell = Cell(engine, view.session_id)
        await cell.sh("touch go")
        assert (await _end(cell, run_id)).exit_code == 0
        after = await engine.poll_run(OWNER, run_id)
        assert (len(after.stdout), after.truncated) == (before, True), (
            "the end does not stand where the middle is missing"
        )
        await engine.destroy_all()


async def test_sessions_that_end_under_their_runs_and_terminals_give_back_what_recorded_them(data_dir: Path) -> None:
    async with _opened_with(data_dir, KeptLimits()) as engine:
        for _ in range(3):
            view = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER))
            run_id = await _start(Cell(engine, view.session_id), "head -c 300000 /dev/zero; sleep 600")
            async with asyncio.timeout(60):
                while len((await engine.poll_run(OWNER, run_id)).stdout) < 300000:
                    await asyncio.sleep(0.01)
            await engine.destroy_session(OWNER, view.session_id)
        async with asyncio.timeout(60):
            while engine.status().recorded_bytes:
                await asyncio.sleep(0.01)
        await engine.destroy_all()


async def test_a_transcript_never_grows_past_its_bound(data_dir: Path) -> None:
    async with _opened_with(data_dir, KeptLimits(transcript_per_session=20_000)) as engine:
        view = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER))
        cell = Cell(engine, view.session_id)
        for number in range(10):
            await cell.sh(f"seq 1000; echo command {number}")
        (transcript,) = (data_dir / "engine" / "sessions").glob("*/transcript")
        assert transcript.stat().st_size <= 20_000
        assert "command 9" in (await engine.transcript(OWNER, cell.id, limit=MIB)).output
        await engine.destroy_all()


async def _takes_at_most(data_dir: Path, most: int) -> bool:
    """Whether output of runs takes no more on the host, once what was let go is removed."""
    async with asyncio.timeout(60):
        while _on_disk(data_dir) > most:
            await asyncio.sleep(0.05)
    return True


def _on_disk(data_dir: Path) -> int:
    size = 0
    for directory, _, names in os.walk(data_dir / "engine" / "sessions"):
        for name in {"1", "2"} & set(names):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                size += (Path(directory) / name).stat().st_size
    return size


async def test_a_run_that_goes_on_after_a_restart_may_print_as_much_as_before(data_dir: Path) -> None:
    script = "echo begun; while [ ! -e go ]; do sleep 0.05; done; head -c 6000000 /dev/zero; while [ ! -e on ]; do sleep 0.05; done"
    async with _opened_with(data_dir, KeptLimits()) as engine:
        view = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER))
        run_id = await _start(Cell(engine, view.session_id), script)
    async with _opened_with(data_dir, KeptLimits()) as engine:
        cell = Cell(engine, view.session_id)
        await cell.write("/workspace/go", b"")
        async with asyncio.timeout(60):
            # While it still runs: nobody waits for its end to see what it has printed.
            while engine.polled_bytes(OWNER, run_id) < MIB:
                await asyncio.sleep(0.01)
        await cell.write("/workspace/on", b"")
        assert (await _end(cell, run_id)).exit_code == 0
        sizes = [len(item.payload) async for item in engine.open_run(OWNER, run_id) if not isinstance(item, Outcome)]
        assert sum(sizes) == 6000006
        await engine.destroy_all()
