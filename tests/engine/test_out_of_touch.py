"""A substrate that fails does not know; it does not mean that a sandbox is dead, and it is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from k8e.engine.engine import Engine
from k8e.engine.sandbox_watch import hear_for_ever
from k8e.engine.settings import EngineSettings
from k8e.engine.substrate import Capabilities, Change
from k8e.errors import HostUnsupported, SandboxFailed
from k8e.lifecycle import Phase
from k8e.model import (
    Availability,
    Command,
    Death,
    Decision,
    Outcome,
    Runtime,
    SandboxId,
    SessionSpec,
    Shell,
    Status,
    Verdict,
)
from k8e.substrate.machine import Machine
from k8e.substrate.machine_substrate import MachineSubstrate
from k8e.substrate.pool import PoolSettings
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, Cell, open_cell
from tests.support.cut_off import CutOff
from tests.support.restartable_engine import OwnSandboxes, RestartableEngine
from tests.support.substrates import over

pytestmark = pytest.mark.anyio


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


class _Unsure(OwnSandboxes):
    """Cannot say how its sandboxes are until it is told that it can."""

    def __init__(self, shared: Machine, error: Exception) -> None:
        super().__init__(shared)
        self.can_say = False
        self._error = error

    async def death(self, sandbox: SandboxId) -> Death:
        if not self.can_say:
            raise self._error
        return await self._shared.death(sandbox)


@pytest.mark.parametrize("error", [OSError("too many open files"), ValueError("too many open files")], ids=repr)
async def test_a_sandbox_that_nobody_can_watch_is_out_of_touch_and_not_dead(
    runtime: Runtime, restartable: RestartableEngine, engine_machine: BareMachine, error: Exception
) -> None:
    restartable.machine = unsure = _Unsure(engine_machine, error)
    async with restartable.open() as engine, open_cell(engine, runtime) as cell:

        def shown() -> tuple[Phase, str]:
            view = engine.get_session(OWNER, cell.id)
            return view.phase, view.detail

        await _until(lambda: shown() == (Phase.ACTIVE, "out of touch: too many open files"))
        assert (await cell.sh("echo works")).stdout == b"works\n"
        unsure.can_say = True
        await _until(lambda: shown() == (Phase.ACTIVE, ""))
        engine_machine.kill(unsure.made[0])
        await _until(lambda: shown()[0] is Phase.FAILED)


class _Breaks(MachineSubstrate):
    """Fails whoever listens to it, as often as it is told to."""

    failures = 0
    error: Exception = SandboxFailed("listen", "the API server does not answer")

    async def changes(self) -> AsyncIterator[Change]:
        async for change in super().changes():
            self._fail()
            yield change

    async def decisions(self) -> AsyncIterator[Decision]:
        async for decision in super().decisions():
            self._fail()
            yield decision

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error


_ERRORS = pytest.mark.parametrize("error", [_Breaks.error, ValueError(), KeyError("sandbox")], ids=repr)


@pytest.fixture
async def machine(data_dir: Path) -> BareMachine:
    return BareMachine(data_dir / "substrate")


@pytest.fixture
def breaks(machine: BareMachine) -> _Breaks:
    return _Breaks(machine, PoolSettings(min=0, max=0))


@pytest.fixture
async def fragile(data_dir: Path, breaks: _Breaks) -> AsyncIterator[Engine]:
    async with Engine.open(EngineSettings(data_dir=data_dir / "engine"), breaks) as engine:
        yield engine
        await engine.destroy_all()


@_ERRORS
async def test_deaths_are_heard_of_after_the_substrate_has_failed(
    fragile: Engine, breaks: _Breaks, machine: BareMachine, error: Exception
) -> None:
    breaks.error = error
    first, second = [await fragile.create_session(OWNER, SessionSpec()) for _ in range(2)]
    assert first.sandbox is not None
    assert second.sandbox is not None
    breaks.failures = 3
    machine.kill(first.sandbox)
    await _until(lambda: fragile.get_session(OWNER, first.session_id).phase is Phase.FAILED)
    assert breaks.failures == 0, "the control: it did fail"
    assert fragile.get_session(OWNER, second.session_id).phase is Phase.ACTIVE
    machine.kill(second.sandbox)
    await _until(lambda: fragile.get_session(OWNER, second.session_id).phase is Phase.FAILED)


@_ERRORS
async def test_decisions_are_heard_after_the_substrate_has_failed(
    fragile: Engine, breaks: _Breaks, machine: BareMachine, error: Exception
) -> None:
    breaks.error = error
    view = await fragile.create_session(OWNER, SessionSpec())
    assert view.sandbox is not None
    decision = Decision(
        at=0.0, sandbox=view.sandbox, verdict=Verdict.DENIED, protocol="tls", name="a.example", port=443
    )
    breaks.failures = 1
    machine.asked.put_nowait(decision)  # lost with the failure
    machine.asked.put_nowait(decision)
    await _until(lambda: fragile.status().egress.denied == 1)
    assert breaks.failures == 0


async def test_while_the_substrate_fails_without_a_word_sessions_are_out_of_touch(
    fragile: Engine, breaks: _Breaks, machine: BareMachine
) -> None:
    first, second = [await fragile.create_session(OWNER, SessionSpec()) for _ in range(2)]
    assert first.sandbox is not None
    breaks.error, breaks.failures = ValueError(), 10**6
    machine.kill(first.sandbox)  # what is to be told
    await _until(lambda: fragile.get_session(OWNER, second.session_id).detail == "out of touch: ValueError()")
    breaks.failures = 0
    await _until(lambda: fragile.get_session(OWNER, second.session_id).detail == "")


async def test_what_is_heard_and_cannot_be_dealt_with_ends_no_listening() -> None:
    """The source stays as it is: each time it tells everything from the beginning."""
    heard, failed = list[str](), list[str]()

    async def listen() -> AsyncIterator[str]:
        for item in ("first", "bad", "last"):
            yield item
        await asyncio.Event().wait()

    def hear(item: str) -> None:
        if item == "bad" and not failed:
            raise ValueError("nobody knows it")
        heard.append(item)

    listening = asyncio.ensure_future(hear_for_ever(listen, hear, failed.append))
    await _until(lambda: "last" in heard)
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    assert heard == ["first", "first", "bad", "last"]
    assert failed == ["nobody knows it"]


async def test_what_a_substrate_cannot_do_is_refused_with_its_reason(fragile: Engine) -> None:
    with pytest.raises(HostUnsupported, match="there is only the host's own image"):
        await fragile.create_session(OWNER, SessionSpec(image="python:3.12"))
    assert fragile.status().sessions == 0
    assert (await fragile.create_session(OWNER, SessionSpec(tenant="can-be-had"))).phase is Phase.ACTIVE


class _Alone(BareMachine):
    """Each of its sandboxes has a workspace that nobody else can have."""

    async def capabilities(self) -> Capabilities:
        cannot = Availability(available=False, detail="its disks are of one sandbox each")
        return replace(await super().capabilities(), workspaces=cannot)


async def test_a_sub_agent_that_cannot_share_a_workspace_is_refused_with_the_reason_before_anything_is_made(
    data_dir: Path,
) -> None:
    machine = _Alone(data_dir / "substrate")
    async with Engine.open(EngineSettings(data_dir=data_dir / "engine"), over(machine)) as engine:
        view = await engine.create_session(OWNER, SessionSpec())
        assert await machine.survivors() == {view.sandbox}, "the control: a session of its own can be had"
        with pytest.raises(HostUnsupported, match=r"workspace that two sessions share.*of one sandbox each"):
            await engine.run_subagent(OWNER, view.session_id)
        assert await machine.survivors() == {view.sandbox}
        assert engine.status().sessions == 1
        await engine.destroy_all()


_TALKS = 'n=0; until [ -e go ]; do n=$((n+1)); echo "$n"; sleep 0.01; done; echo "ended after $n"; exit 3'


async def _end(engine: Engine, run_id: str) -> Outcome:
    async with asyncio.timeout(60):
        async for item in engine.open_run(OWNER, run_id):
            if isinstance(item, Outcome):
                return item
    raise AssertionError("a run without an outcome")


async def _has_said(engine: Engine, run_id: str, words: bytes) -> None:
    async with asyncio.timeout(60):
        while words not in (await engine.poll_run(OWNER, run_id)).stdout:
            await asyncio.sleep(0.01)


async def _is_whole(engine: Engine, run_id: str) -> bool:
    """Whether a run that talked was read to its end without a gap."""
    lines = (await engine.poll_run(OWNER, run_id)).stdout.decode().splitlines()
    count = len(lines) - 1
    return lines == [*map(str, range(1, count + 1)), f"ended after {count}"]


async def _refuses(cell: Cell) -> None:
    """The control: nothing that needs the sandbox's agent works."""
    with pytest.raises(SandboxFailed, match="reach the sandbox's agent"):
        await cell.sh("true")


@pytest.fixture
def cut_off(restartable: RestartableEngine, monkeypatch: pytest.MonkeyPatch) -> CutOff:
    # A sandbox that does not answer may be about to die: how long that is waited for makes no difference here.
    monkeypatch.setattr("k8e.engine.boxes._DYING_S", 0.0)
    restartable.machine = machine = CutOff(restartable.machine)
    return machine


async def test_a_run_whose_sandbox_cannot_be_reached_for_a_while_goes_on_to_its_end(
    runtime: Runtime, restartable: RestartableEngine, cut_off: CutOff
) -> None:
    async with restartable.open() as engine, open_cell(engine, runtime) as cell:
        run_id = (await engine.start_run(OWNER, cell.id, Command(what=Shell(_TALKS)))).run_id
        await _has_said(engine, run_id, b"10\n")
        await cut_off.cut()
        await _refuses(cell)
        assert (await engine.poll_run(OWNER, run_id)).status is Status.RUNNING
        cut_off.heal()
        await cell.write("go", b"")
        assert (await _end(engine, run_id)).exit_code == 3
        assert await _is_whole(engine, run_id)


async def test_runs_and_terminals_of_a_sandbox_that_cannot_be_reached_at_a_restart_are_not_lost(
    runtime: Runtime, restartable: RestartableEngine, cut_off: CutOff
) -> None:
    async with restartable.open() as engine:
        cell = Cell(engine, (await engine.create_session(OWNER, SessionSpec(runtime=runtime))).session_id)
        run_id = (await engine.start_run(OWNER, cell.id, Command(what=Shell(_TALKS)))).run_id
        asked = ["/bin/sh", "-c", "read line; echo got $line; exec sleep 600"]
        terminal_id = (await engine.create_terminal(OWNER, cell.id, argv=asked)).terminal_id
        await _has_said(engine, run_id, b"10\n")
    await cut_off.cut()
    async with restartable.open() as engine:
        cell = Cell(engine, cell.id)
        await _refuses(cell)
        assert (await engine.poll_run(OWNER, run_id)).status is Status.RUNNING
        cut_off.heal()
        await cell.write("go", b"")
        assert (await _end(engine, run_id)).exit_code == 3
        assert await _is_whole(engine, run_id)
        shown = b""
        async with asyncio.timeout(60):
            while True:
                try:
                    await engine.write_terminal(OWNER, terminal_id, b"this\n")
                    break
                except SandboxFailed:
                    await asyncio.sleep(0.05)  # it is still being taken up again
            async for piece in engine.open_terminal(OWNER, terminal_id):
                assert isinstance(piece, bytes)
                shown += piece
                if b"got this" in shown:
                    break
        await engine.destroy_all()
