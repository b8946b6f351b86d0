"""Lists: whose things they show, who may see everybody's, and what sessions use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from google.protobuf.message import Message

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import Service
from k8e.errors import Denied, NotFound
from k8e.identity.callers import Role
from tests.support.bare_machine import BareMachine
from tests.support.calls import StraightCall, as_key, as_uid, service_over
from tests.support.door import open_engine

pytestmark = pytest.mark.anyio

ALICE, BOB = as_uid(1000), as_uid(1001)
ADMIN = as_uid(0, role=Role.ADMIN)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with open_engine(tmp_path / "engine", BareMachine(tmp_path / "substrate")) as engine:
        service = service_over(engine, tmp_path)
        for call, name in ((ALICE, "of-alice"), (BOB, "of-bob")):
            await service.answer("CreateSession", call, pb.CreateSessionRequest(session_id=name))
        yield service


async def _listed(service: Service, call: StraightCall, *, all_owners: bool = False) -> list[tuple[str, str]]:
    answer = await service.answer("ListSessions", call, pb.ListSessionsRequest(all_owners=all_owners))
    return [(each.session_id, each.owner) for each in answer.sessions]


async def test_an_owner_sees_its_own(service: Service) -> None:
    assert await _listed(service, ALICE) == [("of-alice", "uid:1000")]
    assert await _listed(service, ADMIN) == []


async def test_only_an_administrator_sees_everybodys(service: Service) -> None:
    everything = [("of-alice", "uid:1000"), ("of-bob", "uid:1001")]
    assert await _listed(service, ADMIN, all_owners=True) == everything
    for call in (ALICE, as_key("ci", owner="uid:1000"), as_key("phone", owner="uid:1000", role=Role.APPROVER)):
        with pytest.raises(Denied, match="only an administrator"):
            await _listed(service, call, all_owners=True)


@pytest.mark.parametrize(
    ("method", "request_type", "things", "name"),
    [
        ("ListWorkspaces", pb.ListWorkspacesRequest, "workspaces", "tenant_id"),
        ("ListSecrets", pb.ListSecretsRequest, "secrets", "name"),
        ("ListApprovals", pb.ListApprovalsRequest, "approvals", "action"),
    ],
)
async def test_so_it_is_with_everything_else_that_has_an_owner(
    service: Service, method: str, request_type: Callable[..., Message], things: str, name: str
) -> None:
    for call in (BOB, ALICE):
        label = f"by-{call.owner.removeprefix('uid:')}"
        made = await service.answer("CreateSession", call, pb.CreateSessionRequest(tenant_id=label))
        await service.answer("SetSecret", call, pb.SetSecretRequest(name=label, value=b"x"))
        await service.answer("ConfirmAction", call, pb.ConfirmActionRequest(session_id=made.session_id, action=label))

    async def listed(call: StraightCall, *, all_owners: bool = False) -> set[tuple[str, str]]:
        answer = await service.answer(method, call, request_type(all_owners=all_owners))
        return {(getattr(each, name), each.owner) for each in getattr(answer, things)}

    of_alice, of_bob = ("by-1000", "uid:1000"), ("by-1001", "uid:1001")
    assert await listed(ALICE) == {of_alice}
    assert await listed(ADMIN) == set()
    assert await listed(ADMIN, all_owners=True) == {of_alice, of_bob}
    for call in (ALICE, as_key("ci", owner="uid:1000"), as_key("phone", owner="uid:1000", role=Role.APPROVER)):
        with pytest.raises(Denied, match=f"only an administrator sees the {things} of every owner"):
            await listed(call, all_owners=True)


async def test_an_administrator_that_speaks_for_an_owner_sees_that_owners(service: Service) -> None:
    assert await _listed(service, as_uid(0, role=Role.ADMIN, speaks_for="uid:1001")) == [("of-bob", "uid:1001")]


async def test_a_label_selects_from_what_the_caller_sees_and_only_its_owner_changes_it(service: Service) -> None:
    async def selected(call: StraightCall, *, all_owners: bool = False) -> list[str]:
        request = pb.ListSessionsRequest(labels=["task=42"], all_owners=all_owners)
        return [each.session_id for each in (await service.answer("ListSessions", call, request)).sessions]

    for call, name in ((ALICE, "of-alice"), (BOB, "of-bob")):
        await service.answer("UpdateLabels", call, pb.UpdateLabelsRequest(session_id=name, set={"task": "42"}))
    assert await selected(ALICE) == ["of-alice"]
    assert await selected(ADMIN) == []
    assert await selected(ADMIN, all_owners=True) == ["of-alice", "of-bob"]
    with pytest.raises(NotFound):
        await service.answer("UpdateLabels", ALICE, pb.UpdateLabelsRequest(session_id="of-bob", remove=["task"]))
    assert await selected(BOB) == ["of-bob"]


async def test_usage_comes_only_where_it_was_asked_for(service: Service) -> None:
    for with_usage in (False, True):
        request = pb.ListSessionsRequest(with_usage=with_usage)
        (session,) = (await service.answer("ListSessions", ALICE, request)).sessions
        assert session.HasField("usage") == with_usage
    assert session.usage.cpu_s > 0
    assert session.usage.memory_bytes > 1024 * 1024  # an interpreter, which the agent is
    assert session.usage.processes >= 1
