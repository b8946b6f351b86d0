"""One kind of process, however it was started: listed, followed by many, fed and signalled by whoever knows its id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from k8e.engine.process import Follower
from k8e.engine.process_stream import Output
from k8e.errors import Exhausted, NotFound
from k8e.model import Command, Outcome, OwnerId, Reason, Shell, Status
from tests.support.cells import OWNER, Cell

pytestmark = pytest.mark.anyio

_PATIENCE_S = 60.0
_STRANGER = OwnerId("uid:4242")


async def _text(follower: Follower) -> tuple[bytes, Outcome]:
    said = b""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            async for item in follower:
                if isinstance(item, Outcome):
                    return said, item
                said += item.payload
    finally:
        await follower.close()
    raise AssertionError("no outcome")


async def _next(follower: Follower) -> Output | Outcome:
    async with asyncio.timeout(_PATIENCE_S):
        return await anext(aiter(follower))


async def _until_running(cell: Cell, exec_id: str) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not any(each.exec_id == exec_id and each.pid for each in await cell.engine.list_execs(OWNER, cell.id)):
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def _one_of_each(cell: Cell, text: str) -> AsyncIterator[tuple[str, str, str]]:
    """The same program in the foreground, in the background and on a terminal: their ids."""
    command = Command(what=Shell(text), stdin=True)
    foreground = await cell.engine.open_exec(OWNER, cell.id, command, exec_id="in-front")
    run = await cell.engine.start_run(OWNER, cell.id, command)
    terminal = await cell.engine.create_terminal(OWNER, cell.id, argv=["/bin/sh", "-c", text])
    try:
        await _until_running(cell, "in-front")
        yield foreground.id, run.run_id, terminal.terminal_id
    finally:
        await foreground.close()
        await cell.engine.destroy_terminal(OWNER, terminal.terminal_id)
        with contextlib.suppress(NotFound):
            await cell.engine.signal_exec(OWNER, cell.id, run.run_id, 9)
            await _text(await cell.engine.follow_exec(OWNER, cell.id, run.run_id))


async def test_every_kind_is_listed_by_its_id_with_what_may_be_done_to_it(cell: Cell) -> None:
    async with _one_of_each(cell, "exec sleep 600") as (foreground, run, terminal):
        found = {each.exec_id: each for each in await cell.engine.list_execs(OWNER, cell.id)}
        assert [found[each].is_kept for each in (foreground, run, terminal)] == [False, True, True]
        assert [found[each].has_terminal for each in (foreground, run, terminal)] == [False, False, True]
        for each in (foreground, run, terminal):
            assert found[each].is_running
            assert found[each].takes_input
            assert found[each].pid > 0
            assert "exec sleep 600" in found[each].command
        with pytest.raises(NotFound):
            await cell.engine.list_execs(_STRANGER, cell.id)


async def test_every_kind_is_followed_fed_and_ended_by_its_id(cell: Cell) -> None:
    async with _one_of_each(cell, "stty -echo 2>/dev/null; echo ready; read line; echo got $line; exit 3") as ids:
        for each in ids:
            with pytest.raises(NotFound):
                await cell.engine.append_input(_STRANGER, cell.id, each, b"x\n")
            assert await cell.engine.append_input(OWNER, cell.id, each, b"this\n") == (True, True)
        # The owner of the one in the foreground reads it, too: else its end would wait for that.
        front = await cell.engine.attach_exec(OWNER, cell.id, ids[0], {}, stop=True)
        for each in ids[1:]:
            said, outcome = await _text(await cell.engine.follow_exec(OWNER, cell.id, each))
            assert b"ready" in said
            assert b"got this" in said
            assert outcome.exit_code == 3
        assert b"".join([item.payload async for item in front if isinstance(item, Output)]) == b"ready\ngot this\n"
        await front.close()


@pytest.mark.parametrize("kind", [0, 1, 2])
async def test_every_kind_is_signalled_by_its_id(cell: Cell, kind: int) -> None:
    async with _one_of_each(cell, "trap 'exit 7' USR1; echo ready; while :; do sleep 0.02; done") as ids:
        follower = await cell.engine.follow_exec(OWNER, cell.id, ids[kind])
        assert isinstance(await _next(follower), Output)
        with pytest.raises(NotFound):
            await cell.engine.signal_exec(_STRANGER, cell.id, ids[kind], 10)
        await cell.engine.signal_exec(OWNER, cell.id, ids[kind], 10)
        _, outcome = await _text(follower)
        assert (outcome.status, outcome.exit_code) == (Status.COMPLETED, 7)
        others = {each.exec_id: each for each in await cell.engine.list_execs(OWNER, cell.id)}
        assert all(others[each].is_running for each in ids if each != ids[kind]), "the control"


async def test_followers_read_all_that_their_owner_reads_from_any_offset_and_leave_it_alone(cell: Cell) -> None:
    script = (
        "echo one; until [ -e go ]; do sleep 0.01; done; echo two; until [ -e on ]; do sleep 0.01; done; echo three"
    )
    owner = await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell(script)), exec_id="mine")
    assert await owner.next() == Output(1, 0, b"one\n")
    whole = asyncio.ensure_future(_text(await cell.engine.follow_exec(OWNER, cell.id, "mine")))
    part = asyncio.ensure_future(_text(await cell.engine.follow_exec(OWNER, cell.id, "mine", {1: 2})))
    leaving = await cell.engine.follow_exec(OWNER, cell.id, "mine")
    assert await _next(leaving) == Output(1, 0, b"one\n")
    await cell.write("/workspace/go", b"")
    assert await owner.next() == Output(1, 4, b"two\n")
    await leaving.close()
    await cell.write("/workspace/on", b"")
    rest = [item async for item in owner]
    assert rest[0] == Output(1, 8, b"three\n")
    assert (await whole)[0] == b"one\ntwo\nthree\n"
    assert (await part)[0] == b"e\ntwo\nthree\n"
    assert [(await each)[1].status for each in (whole, part)] == [Status.COMPLETED] * 2
    await owner.close()


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_follower_that_falls_behind_holds_up_nobody_and_is_shown_what_it_missed(
    cell: Cell, is_read: bool
) -> None:
    script = "until [ -e go ]; do sleep 0.01; done; head -c 20000000 /dev/zero"
    owner = await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell(script)), exec_id="mine")
    follower = await cell.engine.follow_exec(OWNER, cell.id, "mine")
    reading = asyncio.ensure_future(_text(follower)) if is_read else None
    await cell.write("/workspace/go", b"")
    async with asyncio.timeout(_PATIENCE_S):
        size = 0
        async for item in owner:
            if isinstance(item, Output):
                size += len(item.payload)
            if reading is not None:  # it keeps up, if it is given its turns
                await asyncio.sleep(0)
    assert size == 20_000_000
    said, outcome = await (reading or _text(follower))
    assert outcome.status is Status.COMPLETED
    if not is_read:
        assert len(said) < size
    assert follower.truncated is (len(said) < size)
    await owner.close()


async def test_a_command_that_is_taken_over_keeps_its_followers(cell: Cell) -> None:
    script = "echo one; until [ -e go ]; do sleep 0.01; done; echo two"
    first = await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell(script)), exec_id="mine")
    assert await first.next() == Output(1, 0, b"one\n")
    following = asyncio.ensure_future(_text(await cell.engine.follow_exec(OWNER, cell.id, "mine")))
    second = await cell.engine.attach_exec(OWNER, cell.id, "mine", {1: 4}, stop=True)
    await first.close()
    await cell.write("/workspace/go", b"")
    assert isinstance([item async for item in second][-1], Outcome)
    assert (await following)[0] == b"one\ntwo\n"
    await second.close()


async def test_followers_hear_that_a_command_was_ended_by_its_owners_leaving(cell: Cell) -> None:
    owner = await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell("echo on; exec sleep 600")), exec_id="mine")
    follower = await cell.engine.follow_exec(OWNER, cell.id, "mine")
    assert await _next(follower) == Output(1, 0, b"on\n")
    await owner.next()
    await owner.close()
    assert (await _text(follower))[1].reason is Reason.KILLED


async def test_followers_of_one_command_are_bounded(cell: Cell) -> None:
    owner = await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell("echo on; exec sleep 600")), exec_id="mine")
    followers = [await cell.engine.follow_exec(OWNER, cell.id, "mine") for _ in range(16)]
    for each in followers:
        assert await _next(each) == Output(1, 0, b"on\n")
    with pytest.raises(Exhausted, match="16 followers"):
        await _text(await cell.engine.follow_exec(OWNER, cell.id, "mine"))
    await followers.pop().close()
    again = await cell.engine.follow_exec(OWNER, cell.id, "mine")
    assert await _next(again) == Output(1, 0, b"on\n")
    for each in (*followers, again):
        await each.close()
    await owner.close()


async def test_nobody_follows_what_is_not_there(cell: Cell) -> None:
    with pytest.raises(NotFound):
        await _text(await cell.engine.follow_exec(OWNER, cell.id, "no-such-command"))
    with pytest.raises(NotFound):
        await cell.engine.follow_exec(_STRANGER, cell.id, "mine")


async def test_input_from_several_sides_arrives_whole_each_in_its_order(cell: Cell) -> None:
    """One writes to the stream that it opened, one says where each piece belongs, and two add at the end."""
    owner = await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell("exec cat"), stdin=True), exec_id="mine")
    lines = 200

    async def streams() -> None:
        for number in range(lines):
            await owner.send(b"s%d\n" % number)

    async def says_where() -> None:
        at = 0
        for number in range(lines):
            piece = b"w%d\n" % number
            taken, is_open = await cell.engine.write_input(OWNER, cell.id, "mine", at, piece, is_last=False)
            at += len(piece)
            assert (taken, is_open) == (at, True)

    async def adds(name: bytes) -> None:
        for number in range(lines):
            assert await cell.engine.append_input(OWNER, cell.id, "mine", b"%s%d\n" % (name, number)) == (True, True)

    async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as group:
        for work in (streams(), says_where(), adds(b"a"), adds(b"b")):
            group.create_task(work, name="write")
    said = b""
    async with asyncio.timeout(_PATIENCE_S):
        while said.count(b"\n") < 4 * lines:
            item = await owner.next()
            assert isinstance(item, Output)
            said += item.payload
    for name in (b"s", b"w", b"a", b"b"):
        assert [line for line in said.split(b"\n") if line.startswith(name)] == [
            b"%s%d" % (name, number) for number in range(lines)
        ]
    assert await cell.engine.append_input(OWNER, cell.id, "mine", b"", is_last=True) == (True, False)
    assert isinstance(await owner.next(), Outcome), "its input has ended"
    assert await cell.engine.append_input(OWNER, cell.id, "mine", b"late") == (False, False)
    await owner.close()


async def test_a_run_with_input_goes_on_when_the_input_ends(cell: Cell) -> None:
    run = await cell.engine.start_run(OWNER, cell.id, Command(what=Shell("cat; echo end"), stdin=True))
    assert await cell.engine.append_input(OWNER, cell.id, run.run_id, b"in\n") == (True, True)
    assert await cell.engine.append_input(OWNER, cell.id, run.run_id, b"", is_last=True) == (True, False)
    said, outcome = await _text(await cell.engine.follow_exec(OWNER, cell.id, run.run_id))
    assert (said, outcome.exit_code) == (b"in\nend\n", 0)
    # And once more, when its sandbox has forgotten it.
    assert (await _text(await cell.engine.follow_exec(OWNER, cell.id, run.run_id, {1: 3})))[0] == b"end\n"
