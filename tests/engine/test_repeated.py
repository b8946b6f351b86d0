"""A command that is asked for twice by one id runs once, and both times all of it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.engine import resumable
from k8e.engine.engine import Engine
from k8e.errors import Conflict
from k8e.model import MIB, Code, Command, ExecResult, Gates, Language, Limits, Runtime, Shell
from tests.support.cells import OWNER, Cell, CellFactory

pytestmark = pytest.mark.anyio

_LINES = 60_000
"""More than the sandbox keeps of what was read."""
_SAID = "".join(f"{n}\n" for n in range(1, _LINES + 1)).encode()


@pytest.fixture
async def cell(cells: CellFactory) -> AsyncIterator[Cell]:
    """What is kept, and where, does not depend on the runtime."""
    async with cells(Runtime.CONTAINER) as cell:
        yield cell


async def _exec(cell: Cell, text: str, exec_id: str) -> ExecResult:
    return await cell.engine.exec(OWNER, cell.id, Command(what=Shell(text)), exec_id=exec_id)


def _kept(engine_dir: Path) -> set[str]:
    return {path.name for path in engine_dir.glob("sessions/*/resumable/*")}


async def test_the_second_call_gets_the_result_of_the_first(cell: Cell) -> None:
    text = f"echo once >> ran; seq {_LINES}; echo wrong >&2; exit 3"
    first, second = await _exec(cell, text, "mine"), await _exec(cell, text, "mine")
    assert first.stdout == _SAID
    assert (first.stdout, first.stderr, first.outcome) == (second.stdout, second.stderr, second.outcome)
    assert await cell.read("ran") == b"once\n"


async def test_a_program_of_a_parked_interpreter_runs_once(cell: Cell) -> None:
    command = Command(what=Code(Language.PYTHON, "open('ran', 'a').write('once'); print(6 * 7)"))
    for _ in range(2):
        assert (await cell.engine.exec(OWNER, cell.id, command, exec_id="mine")).stdout == b"42\n"
    assert await cell.read("ran") == b"once"


async def test_a_call_that_comes_while_the_first_waits_takes_over_with_all_of_the_output(cell: Cell) -> None:
    text = f"echo once >> ran; seq {_LINES}; touch said; until [ -e go ]; do sleep 0.01; done; echo end"
    first = asyncio.create_task(_exec(cell, text, "mine"), name="first")
    while (await cell.sh("test -e said")).outcome.exit_code:
        pass
    second = asyncio.create_task(_exec(cell, text, "mine"), name="second")
    with pytest.raises(Conflict, match="took over"):
        await first
    await cell.write("go", b"")
    assert (await second).stdout == _SAID + b"end\n"
    assert await cell.read("ran") == b"once\n"


async def test_what_is_no_longer_kept_is_refused_and_not_run_again(cell: Cell) -> None:
    for number in range(10):
        assert (await _exec(cell, f"echo {number} >> ran", f"mine-{number}")).outcome.exit_code == 0
    while True:
        try:
            await _exec(cell, "echo 0 >> ran", "mine-0")
        except Conflict as error:
            assert "has run already" in str(error)  # noqa: PT017 - until then it is kept
            break
    assert (await _exec(cell, "echo 9 >> ran", "mine-9")).outcome.exit_code == 0
    assert await cell.read("ran") == "".join(f"{n}\n" for n in range(10)).encode()


async def test_one_that_has_been_approved_is_not_asked_about_again(cells: CellFactory) -> None:
    async with cells(Runtime.CONTAINER, gates=Gates(commands=("echo gated",))) as cell:
        text, exec_id = "echo gated; sleep 0.2; exit 4", "m" * 128
        calling = asyncio.create_task(_exec(cell, text, exec_id), name="first")
        while not (asked := cell.engine.list_approvals(OWNER)):
            await asyncio.sleep(0.01)
        await cell.engine.decide_approval(OWNER, "person", asked[0].approval_id, True)
        assert (await calling).outcome.exit_code == 4
        assert (await _exec(cell, text, exec_id)).outcome.exit_code == 4
        assert not cell.engine.list_approvals(OWNER)


async def test_what_is_kept_on_disk_is_bounded_and_goes_with_the_session(
    engine: Engine, engine_dir: Path, cells: CellFactory
) -> None:
    before = _kept(engine_dir)
    async with cells(Runtime.CONTAINER, limits=Limits(output_bytes=MIB)) as cell:
        await _exec(cell, "echo little", "little")
        assert _kept(engine_dir) == before
        await _exec(cell, "head -c 8M /dev/zero", "much")
        assert _kept(engine_dir) - before == {"much"}
        assert sum(path.stat().st_size for path in engine_dir.glob("sessions/*/resumable/much/*")) == MIB
        again = await _exec(cell, "head -c 8M /dev/zero", "much")
        assert (again.stdout, again.truncated) == (bytes(MIB), True)
    assert _kept(engine_dir) == before


async def test_a_call_that_is_given_up_leaves_nothing_to_come_back_for(cell: Cell, engine_dir: Path) -> None:
    before = _kept(engine_dir)
    calling = asyncio.create_task(_exec(cell, f"seq {_LINES}; touch said; sleep 600", "mine"), name="given up")
    while (await cell.sh("test -e said")).outcome.exit_code:
        pass
    assert _kept(engine_dir) - before == {"mine"}
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    async with asyncio.timeout(60):
        while _kept(engine_dir) != before:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("gates", [Gates(), Gates(commands=("echo gated",))], ids=["free", "gated"])
async def test_another_command_does_not_get_the_result_of_one_that_has_its_name(
    cells: CellFactory, gates: Gates
) -> None:
    async with cells(Runtime.CONTAINER, gates=gates) as cell:
        await _exec(cell, "echo first", "mine")
        with pytest.raises(Conflict, match="the name of another command"):
            await _exec(cell, "echo gated", "mine")
        assert (await _exec(cell, "echo first", "mine")).stdout == b"first\n"


async def test_what_nobody_reads_any_more_is_not_kept_for_ever(
    cell: Cell, engine_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable, "_KEPT_S", 0.2)
    before = _kept(engine_dir)
    await _exec(cell, f"seq {_LINES}", "mine")
    onlooker = await cell.engine.attach_exec(OWNER, cell.id, "mine", {})
    await onlooker.close(kill=False)  # without having heard the end
    assert _kept(engine_dir) - before == {"mine"}
    async with asyncio.timeout(60):
        while _kept(engine_dir) != before:
            await asyncio.sleep(0.01)
