"""Commands with somebody at their input: what comes too late, or is cut short, never costs the caller the exit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
from google.protobuf.message import Message

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service.encoding import FairWorker
from k8e.doors.service.execs import ExecRpcs
from k8e.engine import boxes
from k8e.model import Command, Outcome, Reason, Runtime, Shell
from tests.support.calls import StraightCall, as_uid
from tests.support.cells import OWNER, Cell, CellFactory
from tests.support.remembered import remembers

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to report a death than a caller would be kept waiting for it."""
    monkeypatch.setattr(boxes, "_DYING_S", 60.0)


Kill = Callable[[Cell], None]


class _HeldBack(StraightCall):
    """A caller whose connection takes the exit only when `passes` is set."""

    def __init__(self) -> None:
        super().__init__(as_uid(0).caller)
        self.is_told = asyncio.Event()
        self.passes = asyncio.Event()

    async def write(self, message: Message) -> None:
        assert isinstance(message, pb.ExecOutput)
        if message.HasField("exit"):
            self.is_told.set()
            await self.passes.wait()
        await super().write(message)


def _exit(call: StraightCall) -> pb.ExecExit:
    last = call.written[-1]
    assert isinstance(last, pb.ExecOutput)
    assert last.HasField("exit")
    return last.exit


async def test_a_signal_that_comes_while_the_exit_is_told_is_let_pass(cell: Cell) -> None:
    call = _HeldBack()

    async def inputs() -> AsyncIterator[pb.ExecInput]:
        yield pb.ExecInput(start=pb.ExecRequest(session_id=cell.id, command="exit 3"))
        await call.is_told.wait()
        yield pb.ExecInput(signal=15)
        call.passes.set()

    await ExecRpcs(cell.engine, FairWorker()).ExecAttach(call, inputs())
    assert _exit(call).exit_code == 3


async def test_a_signal_to_what_the_sandbox_has_forgotten_is_let_pass(cell: Cell) -> None:
    stream = await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell("exit 3")), exec_id="mine")
    other = await cell.engine.attach_exec(OWNER, cell.id, "mine", {})
    async for item in other:
        assert isinstance(item, Outcome)
    await other.close()
    await cell.engine.processes(OWNER, cell.id)  # answered after all that was asked before
    await stream.signal(15)
    await stream.close(kill=False)


async def test_input_that_waits_in_a_dying_sandbox_leaves_the_caller_its_exit(
    runtime: Runtime, cells: CellFactory, kill_sandbox: Kill
) -> None:
    async with cells(runtime) as cell:
        call = as_uid(0)

        async def inputs() -> AsyncIterator[pb.ExecInput]:
            request = pb.ExecRequest(session_id=cell.id, command="sleep 600")
            yield pb.ExecInput(start=request, with_stdin=True)
            # In the next turn it waits for room that never comes: nobody reads so much.
            asyncio.get_running_loop().call_soon(kill_sandbox, cell)
            yield pb.ExecInput(stdin=b"x" * (8 << 20))

        await ExecRpcs(cell.engine, FairWorker()).ExecAttach(call, inputs())
        assert _exit(call).reason == Reason.SANDBOX_LOST


async def test_an_end_that_was_read_but_not_told_can_be_asked_for_again(cell: Cell) -> None:
    """As by the caller of a server that died in between."""
    command = Command(what=Shell("echo out; exit 3"))
    first = await cell.engine.open_exec(OWNER, cell.id, command, exec_id="mine")
    read = [item async for item in first]
    await cell.engine.processes(OWNER, cell.id)  # answered after all that was asked before
    second = await cell.engine.attach_exec(OWNER, cell.id, "mine", {})
    assert [item async for item in second] == read
    await second.close(kill=False)
    await cell.engine.processes(OWNER, cell.id)
    # Told, and perhaps not heard.
    third = await cell.engine.attach_exec(OWNER, cell.id, "mine", {})
    assert [item async for item in third] == read
    await third.close(kill=False)
    await first.close()


async def _ended(cell: Cell) -> list[str]:
    """The commands of which the session's events say that they have ended."""
    events = [json.loads(event) for event in (await cell.engine.events(OWNER, cell.id)).events]
    return [event["exec_id"] for event in events if event["event"] == "exec.ended"]


@pytest.mark.parametrize("rpc", ["Exec", "ExecStream", "ExecAttach"])
async def test_an_end_that_was_told_is_forgotten(cell: Cell, rpc: str) -> None:
    """Else every command would leave something in its sandbox."""
    untold = await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell("exit 3")))
    async for item in untold:
        assert isinstance(item, Outcome)
    request = pb.ExecRequest(session_id=cell.id, command="exit 3")

    async def inputs() -> AsyncIterator[pb.ExecInput]:
        yield pb.ExecInput(start=request)

    await getattr(ExecRpcs(cell.engine, FairWorker()), rpc)(as_uid(0), inputs() if rpc == "ExecAttach" else request)
    first, told = await _ended(cell)
    assert first == untold.id
    assert not await remembers(cell, told)
    assert await remembers(cell, untold.id), "the control"
    await untold.close()
