"""Readers, followers and the list of processes, where things go wrong or come in an unlucky order."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from k8e.engine import commands
from k8e.engine.engine import Engine
from k8e.engine.process import Process
from k8e.engine.process_stream import Output, ProcessStream
from k8e.engine.session import Session
from k8e.engine.settings import Quotas
from k8e.errors import Conflict, InvalidSpec, NotFound, SandboxFailed
from k8e.model import (
    Argv,
    Command,
    Decision,
    Limits,
    Outcome,
    OwnerId,
    Reason,
    Runtime,
    SessionSpec,
    Shell,
    Status,
    Verdict,
)
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, Cell, CellFactory
from tests.support.restartable_engine import RestartableEngine

pytestmark = pytest.mark.anyio

_PATIENCE_S = 60.0


def _shell(text: str) -> Command:
    return Command(what=Shell(text))


async def _is_running(cell: Cell, exec_id: str) -> bool:
    found = {each.exec_id: each for each in await cell.engine.list_execs(OWNER, cell.id)}
    return exec_id in found and found[exec_id].is_running


async def _until_ended(cell: Cell, exec_id: str) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while await _is_running(cell, exec_id):
            await asyncio.sleep(0.01)


async def _terminal(cell: Cell, text: str) -> str:
    view = await cell.engine.create_terminal(OWNER, cell.id, argv=["/bin/sh", "-c", text])
    return view.terminal_id


def _processes_of(session_id: str) -> list[Process]:
    """Those in memory, whoever holds them."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Process) and each.session.session_id == session_id]


async def test_nothing_of_a_sessions_processes_stays_in_memory_when_it_ends(engine: Engine, runtime: Runtime) -> None:
    view = await engine.create_session(OWNER, SessionSpec(runtime=runtime))
    cell = Cell(engine, view.session_id)
    await engine.start_run(OWNER, cell.id, _shell("exec sleep 600"))
    terminal_id = await _terminal(cell, "head -c 900000 /dev/zero; exec sleep 600")
    async with asyncio.timeout(_PATIENCE_S):
        await anext(aiter(engine.open_terminal(OWNER, terminal_id)))
    assert len(_processes_of(cell.id)) == 2, "the control"
    await engine.destroy_session(OWNER, cell.id)
    async with asyncio.timeout(_PATIENCE_S):
        while _processes_of(cell.id):
            await asyncio.sleep(0.05)
    assert not [each for each in gc.get_objects() if isinstance(each, Session) and each.session_id == cell.id]


async def test_a_run_or_terminal_has_no_reader_whose_place_could_be_taken(cell: Cell) -> None:
    run = await cell.engine.start_run(OWNER, cell.id, _shell("exec sleep 600"))
    terminal_id = await _terminal(cell, "exec sleep 600")
    for each in (run.run_id, terminal_id):
        with pytest.raises(InvalidSpec, match="follow"):
            await cell.engine.attach_exec(OWNER, cell.id, each, {})
    await cell.engine.kill_run(OWNER, run.run_id)
    await cell.engine.destroy_terminal(OWNER, terminal_id)
    await _until_ended(cell, run.run_id)
    await _until_ended(cell, terminal_id)


async def test_a_command_ends_with_its_caller_though_another_call_took_its_name_in_vain(cell: Cell) -> None:
    first = await cell.engine.open_exec(OWNER, cell.id, _shell("exec sleep 600"), exec_id="mine")
    assert await first.started()
    other = await cell.engine.open_exec(OWNER, cell.id, _shell("echo another"), exec_id="mine")
    with pytest.raises(Conflict, match="another command"):
        await other.next()
    await other.close()
    (view,) = await cell.engine.list_execs(OWNER, cell.id)
    assert view.command == "exec sleep 600", "it is listed as before"
    await first.close()
    await _until_ended(cell, "mine")


async def test_a_caller_that_leaves_before_the_other_one_is_refused_ends_its_command_too(cell: Cell) -> None:
    first = await cell.engine.open_exec(OWNER, cell.id, _shell("exec sleep 600"), exec_id="mine")
    assert await first.started()
    other = await cell.engine.open_exec(OWNER, cell.id, _shell("echo another"), exec_id="mine")
    await first.close()
    with pytest.raises(Conflict, match="another command"):
        await other.next()
    await other.close()
    await _until_ended(cell, "mine")


async def test_a_command_ends_with_its_caller_though_another_could_not_reach_it(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_args: object, **_options: object) -> None:
        raise SandboxFailed("reach the sandbox's agent", "for a moment")

    first = await cell.engine.open_exec(OWNER, cell.id, _shell("exec sleep 600"), exec_id="mine")
    assert await first.started()
    with monkeypatch.context() as patched:
        patched.setattr(ProcessStream, "attach", fails)
        with pytest.raises(SandboxFailed):
            await cell.engine.attach_exec(OWNER, cell.id, "mine", {}, stop=True)
    await first.close()
    await _until_ended(cell, "mine")


async def test_a_reader_that_hears_late_of_its_end_leaves_the_list_as_it_is(cell: Cell) -> None:
    script = "echo one; until [ -e go ]; do sleep 0.01; done"
    first = await cell.engine.open_exec(OWNER, cell.id, _shell(script), exec_id="mine")
    await first.next()
    second = await cell.engine.attach_exec(OWNER, cell.id, "mine", {1: 4}, stop=True)
    await cell.write("/workspace/go", b"")
    async for _ in second:
        pass
    await second.close()
    run = await cell.engine.start_run(OWNER, cell.id, _shell("exec sleep 600"))
    with pytest.raises(Conflict):
        await first.next()
    await first.close()
    found = {each.exec_id: each for each in await cell.engine.list_execs(OWNER, cell.id)}
    assert (found[run.run_id].is_kept, found[run.run_id].command) == (True, "exec sleep 600")


async def test_a_follower_of_a_terminal_holds_up_neither_it_nor_its_viewers(cell: Cell) -> None:
    size = 8_000_000
    terminal_id = await _terminal(cell, f"stty raw -echo; read x; head -c {size} /dev/zero; echo end; exec sleep 600")
    follower = await cell.engine.follow_exec(OWNER, cell.id, terminal_id)
    seen = b""
    async with asyncio.timeout(_PATIENCE_S):
        viewer = cell.engine.open_terminal(OWNER, terminal_id)
        await cell.engine.write_terminal(OWNER, terminal_id, b"x\n")
        # From here on the follower stands still.
        assert isinstance(await anext(aiter(follower)), Output)
        async for item in viewer:
            assert isinstance(item, bytes)
            seen += item
            if seen.endswith(b"end\n"):
                break
    assert seen.count(b"\0") == size
    await cell.engine.destroy_terminal(OWNER, terminal_id)
    followed = [item async for item in follower]
    assert isinstance(followed[-1], Outcome)
    assert follower.truncated
    assert sum(len(item.payload) for item in followed if isinstance(item, Output)) < size
    await follower.close()


async def test_a_follower_of_a_run_hears_what_is_missing_and_what_was_denied(
    cells: CellFactory, engine_machine: BareMachine, runtime: Runtime
) -> None:
    async with cells(runtime, limits=replace(Limits(), run_output_bytes=100_000)) as cell:
        sandbox = cell.engine.get_session(OWNER, cell.id).sandbox
        assert sandbox is not None
        for size, is_missing in ((500_000, True), (50_000, False)):
            script = f"until [ -e go ]; do sleep 0.01; done; rm go; head -c {size} /dev/zero"
            run = await cell.engine.start_run(OWNER, cell.id, _shell(script))
            engine_machine.asked.put_nowait(
                Decision(
                    at=time.time(), sandbox=sandbox, verdict=Verdict.DENIED, protocol="tls", name="a.example", port=1
                )
            )
            await cell.write("/workspace/go", b"")
            follower = await cell.engine.follow_exec(OWNER, cell.id, run.run_id)
            async with asyncio.timeout(_PATIENCE_S):
                items = [item async for item in follower]
            assert sum(len(item.payload) for item in items if isinstance(item, Output)) == min(size, 100_000)
            assert follower.truncated is is_missing
            assert [each.host for each in follower.denied] == ["a.example"]
            await follower.close()


async def test_a_follower_hears_that_files_went_with_their_session(
    engine: Engine, engine_dir: Path, runtime: Runtime
) -> None:
    view = await engine.create_session(OWNER, SessionSpec(runtime=runtime))
    cell = Cell(engine, view.session_id)
    run = await engine.start_run(OWNER, cell.id, _shell("head -c 3000000 /dev/zero; exec sleep 600"))
    async with asyncio.timeout(_PATIENCE_S):
        while sum(path.stat().st_size for path in (engine_dir / "sessions").glob(f"*/{run.run_id}/1")) < 3_000_000:
            await asyncio.sleep(0.01)
    follower = await engine.follow_exec(OWNER, cell.id, run.run_id)
    items = aiter(follower)
    first = await anext(items)
    assert isinstance(first, Output)
    await engine.destroy_session(OWNER, cell.id)
    async with asyncio.timeout(_PATIENCE_S):
        rest = [item async for item in items]
    assert isinstance(rest[-1], Outcome)
    assert rest[-1].reason is Reason.SANDBOX_LOST
    had = len(first.payload) + sum(len(item.payload) for item in rest if isinstance(item, Output))
    assert had < 3_000_000, "the control"
    assert follower.truncated
    await follower.close()


async def _kept_output(engine: Engine, owner: OwnerId, session_id: str, engine_dir: Path) -> tuple[str, Path]:
    """A run that has printed `kept`, and the file that has it."""
    run = await engine.start_run(owner, session_id, _shell("echo kept; exec sleep 600"))
    async with asyncio.timeout(_PATIENCE_S):
        while not (found := list((engine_dir / "sessions").glob(f"*/{run.run_id}/1"))) or not found[0].read_bytes():
            await asyncio.sleep(0.01)
    return run.run_id, found[0]


async def test_a_disk_that_is_slow_to_read_holds_up_only_who_reads(cell: Cell, engine_dir: Path) -> None:
    stranger = OwnerId("uid:777")
    theirs = await cell.engine.create_session(stranger, SessionSpec(runtime=Runtime.CONTAINER))
    their_run, _ = await _kept_output(cell.engine, stranger, theirs.session_id, engine_dir)
    run_id, kept = await _kept_output(cell.engine, OWNER, cell.id, engine_dir)
    kept.unlink()
    os.mkfifo(kept)
    # More than the threads that all of this process shares.
    followers = [await cell.engine.follow_exec(OWNER, cell.id, run_id) for _ in range(40)]
    reading = [asyncio.ensure_future(anext(aiter(follower))) for follower in followers]
    try:
        async with asyncio.timeout(_PATIENCE_S):
            assert (await cell.sh("echo on")).stdout == b"on\n"
            await asyncio.to_thread(os.getpid)
            follower = await cell.engine.follow_exec(stranger, theirs.session_id, their_run)
            assert await anext(aiter(follower)) == Output(1, 0, b"kept\n")
            await follower.close()
        assert not any(each.done() for each in reading), "the control: they wait for the disk"
    finally:
        for each in reading:
            each.cancel()
        # Nobody waits for ever to open it: an end for writing that is there at once, and then gone.
        os.close(os.open(kept, os.O_RDWR))
        await asyncio.wait(reading)
        for follower in followers:
            await follower.close()
        await cell.engine.destroy_session(stranger, theirs.session_id)


async def test_a_poll_that_waits_for_its_disk_holds_up_nobody_else(cell: Cell, engine_dir: Path) -> None:
    run_id, kept = await _kept_output(cell.engine, OWNER, cell.id, engine_dir)
    assert (await cell.engine.poll_run(OWNER, run_id)).stdout == b"kept\n", "the control"
    kept.unlink()
    os.mkfifo(kept)
    polling = asyncio.ensure_future(cell.engine.poll_run(OWNER, run_id))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            assert (await cell.sh("echo on")).stdout == b"on\n"
        assert not polling.done()
    finally:
        polling.cancel()
        os.close(os.open(kept, os.O_RDWR))
        await asyncio.wait([polling])


async def test_input_waits_for_its_program_without_being_sent_again_and_again(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    real = commands.ask

    async def counted(session: Session, op: str, args: dict[str, object], *, kind: str, name: str) -> dict[str, object]:
        sent.append(len(str(args.get("data", ""))))
        return await real(session, op, args, kind=kind, name=name)

    monkeypatch.setattr(commands, "ask", counted)
    data = b"x" * 300_000
    script = "until [ -e go ]; do sleep 0.01; done; wc -c"
    process = await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell(script), stdin=True), exec_id="mine")
    assert await cell.engine.append_input(OWNER, cell.id, "mine", data) == (True, True)
    waiting = asyncio.ensure_future(cell.engine.append_input(OWNER, cell.id, "mine", data, is_last=True))
    async with asyncio.timeout(_PATIENCE_S):
        while len(sent) < 20:
            await asyncio.sleep(0.01)
    await cell.write("/workspace/go", b"")
    assert await waiting == (True, False)
    assert sum(size > 0 for size in sent) <= 4
    said = [item async for item in process]
    assert isinstance(said[0], Output)
    assert said[0].payload.strip() == b"600000"
    await process.close()


async def test_the_end_of_input_at_a_terminal_ends_one_program_and_not_its_keyboard(cell: Cell) -> None:
    script = "stty -echo; echo ready; cat; echo again; cat; exec sleep 600"
    terminal_id = await _terminal(cell, script)
    seen = b""

    async def until(words: bytes) -> None:
        nonlocal seen
        while words not in seen:
            item = await anext(shown)
            assert isinstance(item, bytes)
            seen += item

    shown = aiter(cell.engine.open_terminal(OWNER, terminal_id))
    async with asyncio.timeout(_PATIENCE_S):
        await until(b"ready")
        assert await cell.engine.append_input(OWNER, cell.id, terminal_id, b"a\n", is_last=True) == (True, True)
        await until(b"again")
        await cell.engine.write_terminal(OWNER, terminal_id, b"typed\n")
        await until(b"typed")
    await cell.engine.destroy_terminal(OWNER, terminal_id)


async def test_an_end_of_input_that_is_sent_again_ends_no_other_program_at_the_terminal(cell: Cell) -> None:
    script = "stty -echo; echo ready; cat; echo second; cat; echo third; cat; exec sleep 600"
    terminal_id = await _terminal(cell, script)
    seen = b""

    async def until(*words: bytes) -> None:
        nonlocal seen
        while not any(word in seen for word in words):
            item = await anext(shown)
            assert isinstance(item, bytes)
            seen += item

    shown = aiter(cell.engine.open_terminal(OWNER, terminal_id))
    async with asyncio.timeout(_PATIENCE_S):
        await until(b"ready")
        assert await cell.engine.write_input(OWNER, cell.id, terminal_id, 0, b"a\n", is_last=True) == (2, True)
        await until(b"second")
        for data, offset in ((b"a\n", 0), (b"", 2)):  # as a caller does whose answer was lost
            assert await cell.engine.write_input(OWNER, cell.id, terminal_id, offset, data, is_last=True) == (2, True)
        assert await cell.engine.write_input(OWNER, cell.id, terminal_id, 2, b"typed\n", is_last=False) == (8, True)
        await until(b"typed", b"third")
        assert b"third" not in seen
        assert await cell.engine.write_input(OWNER, cell.id, terminal_id, 8, b"", is_last=True) == (8, True)
        await until(b"third")
    await cell.engine.destroy_terminal(OWNER, terminal_id)


async def test_long_names_of_programs_do_not_break_the_list(cell: Cell) -> None:
    for number in range(2):
        result = await cell.engine.exec(OWNER, cell.id, Command(what=Argv(("x" * 600_000,))), exec_id=f"long-{number}")
        assert result.outcome.reason is Reason.NOT_STARTED
    assert {each.exec_id for each in await cell.engine.list_execs(OWNER, cell.id)} == {"long-0", "long-1"}


async def test_a_command_is_listed_as_what_it_is_until_it_is_forgotten(cell: Cell) -> None:
    text = "echo read and ended"
    assert (await cell.engine.exec(OWNER, cell.id, _shell(text), exec_id="mine")).stdout == b"read and ended\n"
    (ended,) = await cell.engine.list_execs(OWNER, cell.id)
    assert (ended.is_running, ended.is_kept, ended.command) == (False, False, text)
    run = await cell.engine.start_run(OWNER, cell.id, _shell("exec sleep 600"))
    listed = {each.exec_id: each for each in await cell.engine.list_execs(OWNER, cell.id)}
    assert (listed[run.run_id].is_kept, listed[run.run_id].command) == (True, "exec sleep 600")


async def test_a_list_after_a_restart_says_when_and_what(restartable: RestartableEngine, runtime: Runtime) -> None:
    async with restartable.open() as engine:
        view = await engine.create_session(OWNER, SessionSpec(runtime=runtime))
        cell = Cell(engine, view.session_id)
        await engine.create_terminal(OWNER, cell.id, argv=["/bin/sleep", "777"])
        process = await engine.open_exec(OWNER, cell.id, _shell("exec sleep 778"), exec_id="front")
        assert await process.started()
        before = await engine.list_execs(OWNER, cell.id)
    async with restartable.open() as engine:
        terminal, front = await engine.list_execs(OWNER, cell.id)
        assert terminal.command == "/bin/sleep"
        assert front.command == "/bin/sh"
        again = await engine.attach_exec(OWNER, cell.id, "front", {}, stop=True)
        after = await engine.list_execs(OWNER, cell.id)
        assert [each.started_at for each in after] == [each.started_at for each in before]
        await again.close()
        await engine.destroy_all()


async def test_the_input_of_a_run_stays_open_over_a_restart_until_it_is_said_to_end(
    restartable: RestartableEngine, runtime: Runtime
) -> None:
    async with restartable.open() as engine:
        view = await engine.create_session(OWNER, SessionSpec(runtime=runtime))
        command = Command(what=Shell("cat; echo end"), stdin=True)
        run_id = (await engine.start_run(OWNER, view.session_id, command)).run_id
        assert await engine.write_input(OWNER, view.session_id, run_id, 0, b"one\n", is_last=False) == (4, True)
    async with restartable.open() as engine, asyncio.timeout(_PATIENCE_S):
        # What was taken before the restart is not taken again.
        assert await engine.write_input(OWNER, view.session_id, run_id, 0, b"one\ntwo\n", is_last=True) == (8, False)
        items = [item async for item in engine.open_run(OWNER, run_id)]
        assert b"".join(each.payload for each in items if isinstance(each, Output)) == b"one\ntwo\nend\n"
        await engine.destroy_all()


async def test_of_terminals_that_have_ended_only_so_many_are_kept(
    restartable: RestartableEngine, runtime: Runtime
) -> None:
    async with restartable.open(quotas=Quotas(terminals_per_session=2)) as engine:
        view = await engine.create_session(OWNER, SessionSpec(runtime=runtime))
        cell = Cell(engine, view.session_id)
        ended = []
        for number in range(5):
            terminal_id = await _terminal(cell, f"echo {number}")
            async with asyncio.timeout(_PATIENCE_S):
                last = [item async for item in engine.open_terminal(OWNER, terminal_id)][-1]
            assert isinstance(last, Outcome)
            assert last.status is Status.COMPLETED
            ended.append(terminal_id)
        for terminal_id in ended[:-2]:
            with pytest.raises(NotFound):
                engine.open_terminal(OWNER, terminal_id)
        for terminal_id in ended[-2:]:
            await engine.destroy_terminal(OWNER, terminal_id)
        await engine.destroy_all()
