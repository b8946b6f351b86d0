"""Attacks on approvals, through the whole service over the real engine: each refused beside one that goes well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import Service
from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings, PoolSettings
from k8e.errors import Conflict, Denied, InvalidSpec, K8eError, NotFound
from k8e.identity.callers import Role
from k8e.model import Runtime, SessionSpec
from k8e.setup.provision import Provisioned
from tests.support.calls import StraightCall, as_key, as_uid, service_over
from tests.support.cells import OWNER, Cell, CellFactory
from tests.support.engines import substrate_for

pytestmark = pytest.mark.anyio

AGENT = as_uid(0)
PERSON = as_key("phone", owner=OWNER, role=Role.APPROVER)
AGENT_SPEC = SessionSpec(runtime=Runtime.CONTAINER)


@pytest.fixture
def service(engine: Engine, tmp_path: Path) -> Service:
    return service_over(engine, tmp_path)


@pytest.fixture
async def box(cells: CellFactory) -> AsyncIterator[Cell]:
    async with cells(Runtime.CONTAINER) as cell:
        yield cell


async def _ask(service: Service, box: Cell, call: StraightCall = AGENT, action: str = "drop the table") -> str:
    answer = await service.answer("ConfirmAction", call, pb.ConfirmActionRequest(session_id=box.id, action=action))
    assert (answer.status, answer.approved) == ("pending", False)
    return str(answer.approval_id)


async def _decide(service: Service, call: StraightCall, approval_id: str, *, approved: bool = True) -> None:
    request = pb.ApproveActionRequest(approval_id=approval_id, approved=approved, reason="seen")
    assert (await service.answer("ApproveAction", call, request)).ok


async def _confirmed(service: Service, approval_id: str, **also: str) -> Any:
    return await service.answer("ConfirmAction", AGENT, pb.ConfirmActionRequest(approval_id=approval_id, **also))


async def test_the_person_beside_the_agent_decides_and_both_see_it(service: Service, box: Cell) -> None:
    approval_id = await _ask(service, box)
    seen = (await service.answer("ListApprovals", PERSON, pb.ListApprovalsRequest())).approvals
    mine = next(each for each in seen if each.approval_id == approval_id)
    assert (mine.action, mine.asked_by, mine.status, mine.owner) == ("drop the table", "uid:0", "pending", OWNER)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_confirmed(service, approval_id), name="the agent waits")
        await asyncio.sleep(0)
        await _decide(service, PERSON, approval_id)
    heard = waiting.result()
    assert (heard.approved, heard.status, heard.decided_by, heard.reason) == (True, "approved", "key:phone", "seen")
    events = [json.loads(row) for row in await box.engine.events(OWNER, box.id)]
    told = {each["event"]: each for each in events if each["event"].startswith("approval.")}
    assert told["approval.asked"]["asked_by"] == "uid:0"
    assert told["approval.decided"]["decided_by"] == "key:phone"


@pytest.mark.parametrize(
    "disguise",
    [
        as_uid(0),
        as_uid(0, role=Role.APPROVER),
        as_uid(0, role=Role.ADMIN),
        as_uid(0, role=Role.ADMIN, speaks_for=OWNER),
    ],
    ids=["itself", "as approver", "as administrator", "speaking for the owner"],
)
async def test_the_asker_cannot_decide_in_any_disguise(service: Service, box: Cell, disguise: StraightCall) -> None:
    approval_id = await _ask(service, box)
    for approved in (True, False):
        with pytest.raises(Denied, match="cannot decide"):
            await _decide(service, disguise, approval_id, approved=approved)
    await _decide(service, PERSON, approval_id)


async def test_neither_another_session_nor_a_sub_agent_makes_the_asker_somebody_else(
    service: Service, box: Cell, cells: CellFactory
) -> None:
    child = Cell(box.engine, (await box.engine.run_subagent(OWNER, box.id)).session_id)
    for asking in (box, child):
        approval_id = await _ask(service, asking)
        async with cells(Runtime.CONTAINER) as other:
            with pytest.raises(NotFound):
                await _confirmed(service, approval_id, session_id=other.id)
            with pytest.raises(Denied):
                await _decide(service, AGENT, approval_id)
        await _decide(service, PERSON, approval_id)
        assert (await _confirmed(service, approval_id, session_id=asking.id)).approved


async def test_a_key_that_asks_cannot_decide_with_its_certificate(service: Service, box: Cell) -> None:
    key = as_key("agent", owner=OWNER)
    approval_id = await _ask(service, box, key)
    for via in ("key", "certificate"):
        with pytest.raises(Denied):
            await _decide(service, as_key("agent", owner=OWNER, via=via), approval_id)
    await _decide(service, as_key("colleague", owner=OWNER), approval_id)


async def test_an_administrator_that_asks_for_an_owner_cannot_decide_for_it(service: Service, box: Cell) -> None:
    ghost = as_uid(4711, role=Role.ADMIN, speaks_for=OWNER)
    approval_id = await _ask(service, box, ghost)
    with pytest.raises(Denied):
        await _decide(service, ghost, approval_id)
    await _decide(service, AGENT, approval_id)


async def test_a_stranger_finds_nothing_whatever_its_role(service: Service, box: Cell) -> None:
    approval_id = await _ask(service, box)
    for role in Role:
        stranger = as_uid(4711, role=role)
        with pytest.raises(NotFound):
            await _decide(service, stranger, approval_id)
        with pytest.raises(NotFound):
            await service.answer("ConfirmAction", stranger, pb.ConfirmActionRequest(approval_id=approval_id))
        with pytest.raises(NotFound):
            await _ask(service, box, stranger)
        assert not (await service.answer("ListApprovals", stranger, pb.ListApprovalsRequest(all=True))).approvals
    await _decide(service, PERSON, approval_id)


async def test_guessed_ids_are_not_found_and_bad_ones_invalid(service: Service, box: Cell) -> None:
    approval_id = await _ask(service, box)
    stem, _, tail = approval_id.rpartition("-")
    assert len(tail) == 26, "128 random bits"
    guesses = [f"{stem}-{'a' * 26}", f"{stem}-{tail[:-1]}", approval_id.upper(), f"approval-{box.id}"]
    for guess in guesses:
        with pytest.raises(NotFound):
            await _decide(service, PERSON, guess)
    for bad in ("", "../approval", "a b", "a\0b", "x" * 1000):
        with pytest.raises(InvalidSpec, match="approval_id"):
            await _decide(service, PERSON, bad)
    await _decide(service, PERSON, approval_id)


async def test_an_answer_does_not_stand_for_another_action(service: Service, box: Cell) -> None:
    approval_id = await _ask(service, box, action="read the log")
    await _decide(service, PERSON, approval_id)
    with pytest.raises(Conflict, match="another action"):
        await _confirmed(service, approval_id, action="delete the log")
    assert (await _confirmed(service, approval_id, action="read the log")).approved


async def test_a_decision_cannot_be_replayed_or_turned(service: Service, box: Cell) -> None:
    approval_id = await _ask(service, box)
    await _decide(service, PERSON, approval_id, approved=False)
    await _decide(service, PERSON, approval_id, approved=False)
    for call, approved in ((PERSON, True), (as_key("other", owner=OWNER), True)):
        with pytest.raises(Conflict, match="already rejected"):
            await _decide(service, call, approval_id, approved=approved)
    again = await _ask(service, box)
    assert again != approval_id
    assert not (await _confirmed(service, approval_id)).approved
    await _decide(service, PERSON, again)


async def test_of_many_that_decide_at_once_exactly_one_wins(service: Service, box: Cell) -> None:
    approval_id = await _ask(service, box)

    async def attempt(name: str, approved: bool) -> str:
        try:
            await _decide(service, as_key(name, owner=OWNER), approval_id, approved=approved)
        except K8eError as error:
            return type(error).__name__
        return name

    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(attempt(f"k{n}", bool(n % 2)), name=f"decider {n}") for n in range(8)]
    winners = [each.result() for each in tries if each.result() != "Conflict"]
    assert len(winners) == 1
    assert (await _confirmed(service, approval_id)).decided_by == f"key:{winners[0]}"


async def test_the_end_of_a_session_ends_its_questions_and_a_new_one_of_its_name_has_none(
    service: Service, cells: CellFactory, engine: Engine
) -> None:
    async with cells(Runtime.CONTAINER, session_id="reused") as first:
        approval_id = await _ask(service, first)
        await engine.destroy_session(OWNER, first.id)
        async with cells(Runtime.CONTAINER, session_id="reused") as second:
            with pytest.raises(Conflict, match="expired"):
                await _decide(service, PERSON, approval_id)
            assert (await _confirmed(service, approval_id)).status == "expired"
            await _decide(service, PERSON, await _ask(service, second))


async def test_a_restart_keeps_the_question_the_rule_and_the_answer(host: Provisioned, data_dir: Path) -> None:
    settings = EngineSettings(data_dir=data_dir / "engine", pool=PoolSettings(min=0))
    async with Engine.open(settings, substrate_for(data_dir, host)) as engine:
        kept = await engine.create_session(OWNER, AGENT_SPEC)
        service, box = service_over(engine, data_dir), Cell(engine, kept.session_id)
        waiting, decided = await _ask(service, box), await _ask(service, box)
        await _decide(service, PERSON, decided)
    async with Engine.open(settings, substrate_for(data_dir, host)) as engine:
        service = service_over(engine, data_dir)
        assert (await _confirmed(service, decided)).approved
        with pytest.raises(Denied):
            await _decide(service, AGENT, waiting)
        async with asyncio.TaskGroup() as group:
            again = group.create_task(_confirmed(service, waiting), name="the agent waits again")
            await asyncio.sleep(0)
            await _decide(service, PERSON, waiting, approved=False)
        assert again.result().status == "rejected"
        await engine.destroy_all()
