"""A link that is lost, in the turn of the loop before everybody has heard of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from k8e.engine.boxes import Box
from k8e.engine.files import Files
from k8e.engine.process_stream import ProcessStream
from k8e.engine.substrate import Substrate
from k8e.errors import SandboxFailed, SandboxLost
from k8e.model import Death, Outcome, Reason, SandboxId
from k8e.tasks import Tasks
from k8e.wire.aio import Event, Link, LinkLost

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


class _Agent:
    """One link: to an agent whose commands end at once, until the link is lost."""

    def __init__(self, *, is_lost: bool = False) -> None:
        self.is_lost = is_lost
        self.asked: list[str] = []
        self.answer: Exception = LinkLost("reset")
        self._items = [Event("started", {"pid": 7}), Event("exited", {"reason": "exited", "code": 3})]

    async def open(self, op: str, args: Mapping[str, Any]) -> _Agent:
        self.asked.append(op)
        # What asks again in the same turn would ask for ever, and nothing else would run.
        assert len(self.asked) < 4
        return self._checked()

    async def receive(self) -> Event:
        return self._checked()._items.pop(0)

    async def call(self, op: str, args: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        raise self.answer

    async def closed(self) -> None:
        """Nobody has heard of the loss yet."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.is_lost = True

    def _checked(self) -> _Agent:
        if self.is_lost:
            raise LinkLost("reset")
        return self


class _Reachable:
    """A sandbox that can be reached over these links, one after the other, and then is dead."""

    def __init__(self, *links: _Agent) -> None:
        self.links = list(links)
        self.box: Box | None = None

    async def connect(self, sandbox: SandboxId) -> Link:
        if not self.links:
            assert self.box is not None
            asyncio.get_running_loop().call_soon(self.box.end, Death(detail="killed"))
            raise ConnectionRefusedError
        return cast("Link", self.links.pop(0))


async def _connected(sandbox: _Reachable, tasks: Tasks) -> Box:
    sandbox.box = box = Box(SandboxId("sb-x"), cast("Substrate", sandbox), tasks)
    await box.connect()
    return box


async def test_a_command_starts_over_a_new_link_when_the_old_one_was_just_lost() -> None:
    old, new = _Agent(), _Agent()
    async with Tasks() as tasks:
        stream = ProcessStream(await _connected(_Reachable(old, new), tasks), "exec-1", tasks)
        old.is_lost = True
        await stream.start({"id": "exec-1"})
        outcome = await stream.next()
        assert isinstance(outcome, Outcome)
    assert outcome.exit_code == 3
    assert "exec" in new.asked


async def test_a_reader_goes_on_over_a_new_link_when_the_old_one_was_just_lost() -> None:
    old, new = _Agent(), _Agent()
    async with Tasks() as tasks:
        stream = ProcessStream(await _connected(_Reachable(old, new), tasks), "exec-1", tasks)
        await stream.start({"id": "exec-1"})
        assert await stream.next(until_started=True) is None
        assert stream.pid == 7
        old.is_lost = True
        outcome = await stream.next()
        assert isinstance(outcome, Outcome)
    assert outcome.exit_code == 3
    assert old.asked == ["exec"]
    assert new.asked[0] == "attach"


async def test_a_request_that_may_not_have_arrived_is_made_again_over_a_new_link() -> None:
    old, new = _Agent(), _Agent()
    async with Tasks() as tasks:
        stream = ProcessStream(await _connected(_Reachable(old, new), tasks), "exec-1", tasks)
        await stream.start({"id": "exec-1"})
        old.is_lost = True
        outcome = await stream.next()
        assert isinstance(outcome, Outcome)
    assert outcome.exit_code == 3
    # To attach to a command that the agent has never heard of would be an error, though it can simply be started.
    assert new.asked[0] == "exec"


async def test_a_reader_whose_sandbox_dies_in_the_same_turn_hears_so() -> None:
    old = _Agent()
    async with Tasks() as tasks:
        stream = ProcessStream(await _connected(_Reachable(old), tasks), "exec-1", tasks)
        await stream.start({"id": "exec-1"})
        old.is_lost = True
        outcome = await stream.next()
        assert isinstance(outcome, Outcome)
    assert outcome.reason is Reason.SANDBOX_LOST


async def test_a_reader_that_is_hung_up_on_leaves_the_loop_to_others() -> None:
    first, useless = _Agent(), [_Agent(is_lost=True) for _ in range(100)]
    sandbox = _Reachable(first, *useless)
    async with Tasks() as tasks:
        stream = ProcessStream(await _connected(sandbox, tasks), "exec-1", tasks)
        await stream.start({"id": "exec-1"})
        first.is_lost = True
        reading = tasks.start(stream.next(), name="reading")
        async with asyncio.timeout(PATIENCE_S):
            while len(sandbox.links) == len(useless):
                await asyncio.sleep(0)
        # It has tried, and our turn came before it had used up all that there is.
        assert len(sandbox.links) > 0
        reading.cancel()


async def test_all_who_need_a_link_at_once_share_one_dial() -> None:
    old, new, spare = _Agent(), _Agent(), _Agent()
    sandbox = _Reachable(old, new, spare)
    async with Tasks() as tasks:
        box = await _connected(sandbox, tasks)
        old.is_lost = True
        links = await asyncio.gather(*(box.link() for _ in range(10)))
    assert {id(link) for link in links} == {id(new)}
    assert sandbox.links == [spare]


async def test_a_request_that_leaves_takes_the_dial_from_nobody() -> None:
    old, new = _Agent(), _Agent()
    async with Tasks() as tasks:
        box = await _connected(_Reachable(old, new), tasks)
        old.is_lost = True
        leaving, staying = asyncio.ensure_future(box.link()), asyncio.ensure_future(box.link())
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying is cast("Link", new)


@pytest.mark.parametrize("error", [LinkLost("reset"), TimeoutError()])
async def test_an_agent_that_does_not_answer_is_a_failure_while_its_sandbox_lives(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.engine.boxes._DYING_S", 0.0)
    agent = _Agent()
    agent.answer = error
    async with Tasks() as tasks:
        box = await _connected(_Reachable(agent), tasks)
        with pytest.raises(SandboxFailed, match="reach the sandbox's agent") as raised:
            await Files(box).stat("/workspace")
    assert not isinstance(raised.value, SandboxLost)


async def test_a_link_that_is_lost_as_often_as_it_is_made_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8e.engine.boxes._DYING_S", 0.0)
    async with Tasks() as tasks:
        box = await _connected(_Reachable(*(_Agent(is_lost=True) for _ in range(3))), tasks)
        with pytest.raises(SandboxFailed, match="reach the sandbox's agent"):
            await ProcessStream(box, "exec-1", tasks).start({"id": "exec-1"})
