"""What the engine promises at a gate, to callers of its service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import Service
from k8e.engine.engine import Engine
from k8e.errors import Conflict, Denied, NotFound
from tests.support.at_gates import AGENT, at_gate, decide, pending, waiting
from tests.support.calls import service_over
from tests.support.cells import OWNER

pytestmark = pytest.mark.anyio

GATES = pb.Gates(
    egress=True,
    write_paths=["/workspace/deploy"],
    workspace=True,
    secrets=True,
    commands=["rm -rf", "pip install.*evil"],
)


@pytest.fixture
def service(engine: Engine, tmp_path: Path) -> Service:
    return service_over(engine, tmp_path)


@pytest.fixture
async def session_id(service: Service, engine: Engine) -> AsyncIterator[str]:
    request = pb.CreateSessionRequest(runtime_class="container", gates=GATES)
    made = str((await service.answer("CreateSession", AGENT, request)).session_id)
    yield made
    await service.answer("DestroySession", AGENT, pb.DestroySessionRequest(session_id=made))


def requests(session_id: str) -> dict[str, tuple[str, object]]:
    """A call at each gate of a session: what is asked, and how."""
    command = pb.ExecRequest(session_id=session_id, command="rm -rf nothing-here")
    gated = "deploy/app"
    return {
        'let the session reach "new.example"': (
            "UpdateAllowedHosts",
            pb.UpdateAllowedHostsRequest(session_id=session_id, add=["new.example"]),
        ),
        'write 3 bytes to "deploy/app"': (
            "WriteFile",
            pb.WriteFileRequest(session_id=session_id, path=gated, content="new"),
        ),
        'make the directory "deploy/app"': (
            "MakeDirectory",
            pb.MakeDirectoryRequest(session_id=session_id, path=gated),
        ),
        'move "free" to "deploy/app"': (
            "MoveFile",
            pb.MoveFileRequest(session_id=session_id, source="free", target=gated),
        ),
        'remove "deploy"': ("RemoveFile", pb.RemoveFileRequest(session_id=session_id, path="deploy", recursive=True)),
        "run a shell command": ("Exec", command),
        'run a shell command as "root" in "/workspace"': (
            "Exec",
            pb.ExecRequest(session_id=session_id, command="rm -rf nothing-here", background=True),
        ),
    }


@pytest.mark.parametrize("action", requests("s"))
async def test_a_call_at_a_gate_goes_on_only_when_somebody_else_allows_it(
    service: Service, session_id: str, action: str
) -> None:
    for path in ("free", "other/file"):
        write = pb.WriteFileRequest(session_id=session_id, path=path, content="free")
        await service.answer("WriteFile", AGENT, write)
    if action in {'remove "deploy"', 'move "free" to "deploy/app"'}:
        make = pb.ExecRequest(session_id=session_id, command="mkdir deploy")
        assert (await service.answer("Exec", AGENT, make)).exit_code == 0
    rpc, request = requests(session_id)[action]
    for approved in (False, True):
        async with at_gate(service.answer(rpc, AGENT, request), service) as (task, asked):
            assert asked.action.startswith(action)
            assert (asked.asked_by, asked.session_id) == ("key:agent", session_id)
            with pytest.raises(Denied):
                await decide(service, asked, call=AGENT)
            await decide(service, asked, approved=approved)
        assert isinstance(task.result(), Denied) is not approved
        if not approved:
            assert task.result().approval_id == asked.approval_id
            assert "key:phone" in str(task.result())


async def test_links_and_dots_lead_no_call_past_a_gate(service: Service, session_id: str) -> None:
    make = pb.ExecRequest(session_id=session_id, command="mkdir deploy; ln -s deploy link")
    assert (await service.answer("Exec", AGENT, make)).exit_code == 0
    for path in ("link/app", "other/../deploy/app", "/workspace//deploy/app"):
        request = pb.WriteFileRequest(session_id=session_id, path=path, content="new")
        async with at_gate(service.answer("WriteFile", AGENT, request), service) as (task, asked):
            await decide(service, asked, approved=False)
        assert isinstance(task.result(), Denied)
    beside = pb.WriteFileRequest(session_id=session_id, path="deployed", content="new")
    assert (await service.answer("WriteFile", AGENT, beside)).ok


async def test_packages_are_commands_too(service: Service, session_id: str) -> None:
    request = pb.PipInstallRequest(session_id=session_id, packages=["evil"])
    async with at_gate(service.answer("PipInstall", AGENT, request), service) as (task, asked):
        await decide(service, asked, approved=False)
    assert isinstance(task.result(), Denied)


async def test_a_child_is_gated_like_its_parent_and_both_say_so(service: Service, session_id: str) -> None:
    child = (await service.answer("RunSubAgent", AGENT, pb.RunSubAgentRequest(parent_session_id=session_id))).session_id
    for each in (session_id, child):
        assert (await service.answer("GetSession", AGENT, pb.GetSessionRequest(session_id=each))).gates == GATES
    request = pb.WriteFileRequest(session_id=child, path="deploy/app", content="new")
    async with at_gate(service.answer("WriteFile", AGENT, request), service) as (task, asked):
        await decide(service, asked, approved=False)
    assert isinstance(task.result(), Denied)


async def test_the_next_session_of_a_tenant_has_what_the_first_had(service: Service) -> None:
    made = []
    for gates in (pb.Gates(egress=True, write_paths=["/workspace/deploy"]), None):
        request = pb.CreateSessionRequest(runtime_class="container", tenant_id="contract-tenant", gates=gates)
        made.append((await service.answer("CreateSession", AGENT, request)).session)
    assert made[0].gates == made[1].gates
    wider = pb.CreateSessionRequest(
        runtime_class="container", tenant_id="contract-tenant", allowed_hosts=["evil.example"]
    )
    async with at_gate(service.answer("CreateSession", AGENT, wider), service) as (task, asked):
        assert asked.action == 'create a session of tenant "contract-tenant" that may reach "evil.example"'
        await decide(service, asked, approved=False)
    assert isinstance(task.result(), Denied)
    for each in made:
        await service.answer("DestroySession", AGENT, pb.DestroySessionRequest(session_id=each.session_id))


async def test_a_caller_that_leaves_takes_its_question_along(service: Service, session_id: str) -> None:
    request = pb.WriteFileRequest(session_id=session_id, path="deploy/app", content="new")
    task = asyncio.ensure_future(service.answer("WriteFile", AGENT, request))
    asked = (await waiting(service))[0]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await pending(service)
    # Whether it was on disk already when its caller left, or is not known at all.
    with pytest.raises((Conflict, NotFound)):
        await decide(service, asked)


async def test_secrets_are_seen_only_when_somebody_allows_it(service: Service, engine: Engine) -> None:
    await engine.set_secret(OWNER, "contract", "value", b"the value")
    request = pb.CreateSessionRequest(
        runtime_class="container",
        secret_refs=[pb.SecretRef(secret_name="contract", env_var="TOKEN")],
        gates=pb.Gates(secrets=True),
    )
    try:
        async with at_gate(service.answer("CreateSession", AGENT, request), service) as (task, asked):
            assert asked.action == 'create a session that sees the value of "contract:value" as "TOKEN"'
            await decide(service, asked, approved=False)
        assert isinstance(task.result(), Denied)
    finally:
        await engine.delete_secret(OWNER, "contract")
