"""Attacks on gates, through the whole service over the real engine: each waits or is refused, beside one that goes well."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import Service
from k8e.engine.engine import Engine
from k8e.engine.files import Files
from k8e.engine.gatekeeper import GateStep
from k8e.engine.settings import EngineSettings
from k8e.errors import Conflict, Denied, InvalidSpec, NotFound, SandboxLost
from k8e.identity.callers import Role
from k8e.model import Gates, Runtime, SecretRef, SessionSpec
from k8e.setup.provision import Provisioned
from tests.support.at_gates import AGENT, at_gate, decide, outcome, pending, waiting
from tests.support.calls import StraightCall, as_key, as_uid, service_over
from tests.support.cells import OWNER, Cell, CellFactory
from tests.support.engines import machine_for
from tests.support.substrates import over

pytestmark = pytest.mark.anyio

GATE = "/workspace/deploy"
EVERYTHING = Gates(egress=True, write_paths=(GATE,), workspace=True, secrets=True, commands=("rm -rf",))


@pytest.fixture
def service(engine: Engine, tmp_path: Path) -> Service:
    return service_over(engine, tmp_path)


@pytest.fixture
async def box(cells: CellFactory) -> AsyncIterator[Cell]:
    async with cells(Runtime.CONTAINER, gates=EVERYTHING) as cell:
        yield cell


async def written(service: Service, box: Cell, path: str, content: str = "new", **more: Any) -> Any:
    request = pb.WriteFileRequest(session_id=box.id, path=path, content=content, **more)
    return await service.answer("WriteFile", AGENT, request)


async def streamed(service: Service, box: Cell, path: str, *pieces: bytes) -> Any:
    async def inputs() -> AsyncIterator[pb.WriteStreamRequest]:
        yield pb.WriteStreamRequest(open=pb.WriteStreamOpen(session_id=box.id, path=path))
        for piece in pieces:
            yield pb.WriteStreamRequest(data=piece)

    return await service.answer("WriteStream", AGENT, inputs())


async def allowed(service: Service, box: Cell, **change: list[str]) -> list[str]:
    request = pb.UpdateAllowedHostsRequest(session_id=box.id, **change)
    return list((await service.answer("UpdateAllowedHosts", AGENT, request)).hosts)


async def deployed(box: Cell) -> bytes:
    return (await box.sh("find deploy -type f -exec cat {} + 2>/dev/null; find deploy 2>/dev/null | sort")).stdout


# Every point


def exec_request(box: Cell, **more: Any) -> pb.ExecRequest:
    return pb.ExecRequest(session_id=box.id, command="rm -rf nothing-here", **more)


async def attached(service: Service, box: Cell) -> None:
    async def inputs() -> AsyncIterator[pb.ExecInput]:
        yield pb.ExecInput(start=exec_request(box))

    await service.answer("ExecAttach", AGENT, inputs())


Point = Callable[[Service, Cell], Awaitable[Any]]
POINTS: dict[str, Point] = {
    "UpdateAllowedHosts": lambda service, box: allowed(service, box, add=["new.example"]),
    "WriteFile": lambda service, box: written(service, box, f"{GATE}/app"),
    "WriteStream": lambda service, box: streamed(service, box, f"{GATE}/app", b"new"),
    "MakeDirectory": lambda service, box: service.answer(
        "MakeDirectory", AGENT, pb.MakeDirectoryRequest(session_id=box.id, path=f"{GATE}/sub")
    ),
    "MoveFile": lambda service, box: service.answer(
        "MoveFile", AGENT, pb.MoveFileRequest(session_id=box.id, source="free", target=f"{GATE}/free")
    ),
    "RemoveFile": lambda service, box: service.answer(
        "RemoveFile", AGENT, pb.RemoveFileRequest(session_id=box.id, path=f"{GATE}/old")
    ),
    "Exec": lambda service, box: service.answer("Exec", AGENT, exec_request(box)),
    "Exec in the background": lambda service, box: service.answer("Exec", AGENT, exec_request(box, background=True)),
    "Exec of a program": lambda service, box: service.answer(
        "Exec", AGENT, pb.ExecRequest(session_id=box.id, code=b"print('rm -rf')", language="python")
    ),
    "Exec of arguments": lambda service, box: service.answer(
        "Exec", AGENT, pb.ExecRequest(session_id=box.id, argv=[b"rm", b"-rf", b"nothing-here"])
    ),
    "ExecStream": lambda service, box: service.answer("ExecStream", AGENT, exec_request(box)),
    "ExecAttach": attached,
    "CreateTerminal": lambda service, box: service.answer(
        "CreateTerminal", AGENT, pb.CreateTerminalRequest(session_id=box.id, argv=["sh", "-c", "rm -rf nothing"])
    ),
}


async def prepare(box: Cell) -> None:
    """The sandbox's own programs are not gated: that is what the documentation says, and a control here."""
    assert (await box.sh("mkdir -p deploy; echo old > deploy/old; echo free > free")).outcome.exit_code == 0


@pytest.mark.parametrize("point", POINTS)
async def test_a_call_waits_and_goes_on_when_somebody_else_allows_it(service: Service, box: Cell, point: str) -> None:
    await prepare(box)
    async with at_gate(POINTS[point](service, box), service) as (task, asked):
        assert (asked.asked_by, asked.session_id, asked.owner) == ("key:agent", box.id, OWNER)
        await decide(service, asked)
    assert not isinstance(task.result(), Exception)
    assert not await pending(service)


@pytest.mark.parametrize("point", POINTS)
async def test_a_call_that_is_refused_does_nothing_and_names_who_and_why(
    service: Service, box: Cell, point: str
) -> None:
    await prepare(box)
    before = await deployed(box)
    async with at_gate(POINTS[point](service, box), service) as (task, asked):
        await decide(service, asked, approved=False)
    refusal = task.result()
    assert isinstance(refusal, Denied)
    assert refusal.approval_id == asked.approval_id
    assert "key:phone" in str(refusal)
    assert "seen" in str(refusal)
    assert await deployed(box) == before
    assert "new.example" not in box.engine.get_session(OWNER, box.id).allowed_hosts


@pytest.mark.parametrize("point", POINTS)
async def test_whoever_is_asked_about_it_is_never_the_one_that_called(service: Service, box: Cell, point: str) -> None:
    await prepare(box)
    async with at_gate(POINTS[point](service, box), service) as (task, asked):
        for call in (
            AGENT,
            as_key("agent", owner=OWNER, via="certificate"),
            as_key("agent", owner=OWNER, role=Role.ADMIN),
        ):
            for presence in ("", "terminal", "elicitation"):
                with pytest.raises(Denied):
                    await decide(service, asked, call=call, presence=presence)
        assert not task.done()
        # Asking once more by hand and waiting for that is not an answer either.
        assert (await pending(service))[0].approval_id == asked.approval_id
        await decide(service, asked)
    assert not isinstance(task.result(), Exception)


@pytest.mark.parametrize("point", POINTS)
async def test_without_a_gate_nobody_is_asked(service: Service, cells: CellFactory, point: str) -> None:
    async with cells(Runtime.CONTAINER) as free:
        await prepare(free)
        await POINTS[point](service, free)
        assert not await pending(service)


# Paths


ROADS = [
    f"{GATE}/app",
    "deploy/app",
    "./deploy//app",
    "//workspace/deploy/app",
    "/workspace/other/../deploy/app",
    "/tmp/../workspace/deploy/app",
    "other/link/app",
    "other/absolute/app",
    "other/file",
    "/proc/self/root/workspace/deploy/app",
]


@pytest.mark.parametrize("road", ROADS)
async def test_no_road_leads_to_a_gated_path_unasked(service: Service, box: Cell, road: str) -> None:
    await prepare(box)
    await box.sh(
        "mkdir -p other; cd other; ln -s ../deploy link; ln -s /workspace/deploy absolute; ln -s ../deploy/app file"
    )
    before = await deployed(box)
    for more in ({"path": road}, {"path": "ignored", "path_bytes": road.encode()}):
        request = pb.WriteFileRequest(session_id=box.id, content="new", **more)
        async with at_gate(service.answer("WriteFile", AGENT, request), service) as (_, asked):
            assert "/workspace/deploy/app" in asked.action or road in asked.action
            assert await deployed(box) == before
            await decide(service, asked, approved=False)
    assert await deployed(box) == before
    await written(service, box, "other/beside")
    async with at_gate(written(service, box, road), service) as (task, asked):
        await decide(service, asked)
    assert task.result().ok
    assert await box.read(f"{GATE}/app") == b"new"


@pytest.mark.parametrize(
    ("rpc", "request_", "is_gated"),
    [
        ("RemoveFile", pb.RemoveFileRequest(path="/workspace", recursive=True), True),
        ("RemoveFile", pb.RemoveFileRequest(path="deploy/../deploy", recursive=True), True),
        ("RemoveFile", pb.RemoveFileRequest(path="other/link/old"), True),
        ("RemoveFile", pb.RemoveFileRequest(path="other", recursive=True), False),
        ("MoveFile", pb.MoveFileRequest(source="deploy", target="gone"), True),
        ("MoveFile", pb.MoveFileRequest(source="other/link/old", target="gone"), True),
        ("MoveFile", pb.MoveFileRequest(source="free", target="other/link/free"), True),
        ("MoveFile", pb.MoveFileRequest(source="free", target="other/free"), False),
        ("MakeDirectory", pb.MakeDirectoryRequest(path="other/link/sub"), True),
        ("MakeDirectory", pb.MakeDirectoryRequest(path="other/sub"), False),
    ],
)
async def test_what_takes_a_gated_path_along_is_a_change_of_it(
    service: Service, box: Cell, rpc: str, request_: Any, is_gated: bool
) -> None:
    await prepare(box)
    await box.sh("mkdir -p other; ln -s ../deploy other/link")
    before = await deployed(box)
    request = type(request_)()
    request.CopyFrom(request_)
    request.session_id = box.id
    if not is_gated:
        assert (await service.answer(rpc, AGENT, request)).ok
        return
    async with at_gate(service.answer(rpc, AGENT, request), service) as (task, asked):
        await decide(service, asked, approved=False)
    assert isinstance(task.result(), Denied)
    assert await deployed(box) == before


async def test_a_link_that_is_put_in_place_while_the_question_waits_leads_nowhere(service: Service, box: Cell) -> None:
    await prepare(box)
    await box.sh("mkdir -p deploy/a elsewhere; echo safe > elsewhere/app")
    async with at_gate(written(service, box, "deploy/a/app"), service) as (task, asked):
        # What was approved is deploy/a/app; it has become another place, gated as well.
        await box.sh("rmdir deploy/a; mkdir deploy/b; ln -s b deploy/a")
        await decide(service, asked)
    assert isinstance(task.result(), Conflict)
    assert (await box.sh("ls deploy/b")).stdout == b""
    async with at_gate(written(service, box, "deploy/b/app"), service) as (again, asked):
        await decide(service, asked)
    assert again.result().ok


async def test_what_was_free_when_asked_for_and_is_gated_when_written_is_refused(
    service: Service, box: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(box)
    await box.sh("ln -s deploy link; mkdir plain")
    before = await deployed(box)

    async def nothing(self: Files, op: str, gates: tuple[str, ...], **paths: str) -> tuple[str, ...]:
        """As the look is that came before the link did."""
        return ()

    monkeypatch.setattr(Files, "gated", nothing)
    for road in ("link/app", "link/sub/app"):
        assert isinstance(await outcome(streamed(service, box, road, b"new")), Conflict)
    move = pb.MoveFileRequest(session_id=box.id, source="free", target="link/app")
    assert isinstance(await outcome(service.answer("MoveFile", AGENT, move)), Conflict)
    assert await deployed(box) == before
    assert (await streamed(service, box, "plain/sub/app", b"new")).size == 3


async def test_the_question_names_exactly_what_is_written(service: Service, box: Cell) -> None:
    content = "\x1b[2Jsecret plan\n"
    digest = hashlib.sha256(content.encode()).hexdigest()
    write = written(service, box, f"{GATE}/a\nb\u202e", content, mode="a", perm=0o4755)
    async with at_gate(write, service) as (task, asked):
        assert asked.action == rf'append 16 bytes to "{GATE}/a\nb\u202e" (sha256 {digest}, mode 4755)'
        await decide(service, asked)
    assert task.result().ok


async def test_a_stream_is_held_whole_outside_until_it_is_decided(service: Service, box: Cell) -> None:
    pieces = [bytes([65 + number]) * 700_000 for number in range(4)]
    whole = b"".join(pieces)
    async with at_gate(streamed(service, box, f"{GATE}/big", *pieces), service) as (task, asked):
        assert hashlib.sha256(whole).hexdigest() in asked.action
        assert (await box.sh("find / -xdev -name '.k8e-tmp-*' 2>/dev/null")).stdout == b""
        await decide(service, asked)
    assert task.result().size == len(whole)
    assert await box.read(f"{GATE}/big") == whole


async def test_gvisor_resolves_a_path_as_the_hosts_kernel_does(service: Service, cells: CellFactory) -> None:
    async with cells(Runtime.GVISOR, gates=EVERYTHING) as cell:
        await prepare(cell)
        await cell.sh("mkdir -p other; ln -s ../deploy other/link; ln deploy/old other/twin")
        before = await deployed(cell)
        for road, mode in (("other/link/app", "w"), ("/proc/self/root/workspace/deploy/app", "w"), ("other/twin", "a")):
            async with at_gate(written(service, cell, road, mode=mode), service) as (task, asked):
                await decide(service, asked, approved=False)
            assert isinstance(task.result(), Denied)
        assert await deployed(cell) == before
        await written(service, cell, "other/beside")
        async with at_gate(written(service, cell, "other/link/a/b/app"), service) as (task, asked):
            await decide(service, asked)
        assert await cell.read(f"{GATE}/a/b/app") == b"new"


# Hosts


async def test_only_what_widens_is_asked_for_and_exactly_that(service: Service, box: Cell) -> None:
    before = list(box.engine.get_session(OWNER, box.id).allowed_hosts)
    kept = before[0]
    assert await allowed(service, box, remove=before[1:]) == [kept]
    assert await allowed(service, box, hosts=[kept]) == [kept]
    assert await allowed(service, box, add=["!bad.example"]) == [kept, "!bad.example"]
    assert not await pending(service)
    for change, wider in (
        ({"hosts": [kept, "!bad.example", "a.example", "B.example"]}, '"a.example", "b.example"'),
        ({"add": ["c.example:22"], "remove": [kept]}, '"c.example:22"'),
        ({"remove": ["!bad.example"]}, 'what was denied until now, "bad.example"'),
        ({"hosts": [kept]}, 'what was denied until now, "bad.example"'),
    ):
        async with at_gate(allowed(service, box, **change), service) as (task, asked):
            assert asked.action == f"let the session reach {wider}"
            await decide(service, asked, approved=False)
        assert isinstance(task.result(), Denied)
    assert box.engine.get_session(OWNER, box.id).allowed_hosts == (kept, "!bad.example")


async def test_a_list_that_changed_while_the_question_waited_is_asked_for_again(service: Service, box: Cell) -> None:
    kept = box.engine.get_session(OWNER, box.id).allowed_hosts[0]
    async with at_gate(allowed(service, box, hosts=[kept, "a.example"]), service) as (task, asked):
        assert await allowed(service, box, hosts=["!b.example"]) == ["!b.example"]
        await decide(service, asked)
    # It would bring back what was taken away meanwhile, and lift a denial, and nobody allowed that.
    assert isinstance(task.result(), Conflict)
    assert box.engine.get_session(OWNER, box.id).allowed_hosts == ("!b.example",)


# One approval, one call


async def test_an_approval_stands_for_one_call_and_never_for_a_second(service: Service, box: Cell) -> None:
    async with at_gate(written(service, box, f"{GATE}/app"), service) as (first, asked):
        await decide(service, asked)
    assert first.result().ok
    async with at_gate(written(service, box, f"{GATE}/app"), service) as (second, again):
        assert again.approval_id != asked.approval_id
        assert again.action == asked.action
        await decide(service, again, approved=False)
    assert isinstance(second.result(), Denied)


async def test_of_two_calls_at_once_one_approval_lets_one_go_on(service: Service, box: Cell) -> None:
    async with (
        at_gate(written(service, box, f"{GATE}/app"), service) as (first, one),
        at_gate(written(service, box, f"{GATE}/app"), service) as (second, other),
    ):
        assert other.approval_id != one.approval_id
        await decide(service, one)
        async with asyncio.timeout(60):
            assert (await first).ok
        assert not second.done()
        await decide(service, other, approved=False)
    assert isinstance(second.result(), Denied)


async def test_a_question_that_was_asked_by_hand_opens_no_gate(service: Service, box: Cell) -> None:
    async with at_gate(written(service, box, f"{GATE}/app"), service) as (_, asked):
        await decide(service, asked, approved=False)
    confirm = pb.ConfirmActionRequest(session_id=box.id, action=asked.action)
    by_hand = await service.answer("ConfirmAction", AGENT, confirm)
    await decide(service, pb.Approval(approval_id=by_hand.approval_id))
    async with at_gate(written(service, box, f"{GATE}/app"), service) as (task, again):
        await decide(service, again, approved=False)
    assert isinstance(task.result(), Denied)


async def test_a_caller_that_goes_away_takes_its_question_along(service: Service, box: Cell) -> None:
    task = asyncio.ensure_future(written(service, box, f"{GATE}/app"))
    asked = (await waiting(service))[0]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await pending(service)
    # Whether it was on disk already when its caller left, or is not known at all.
    with pytest.raises((Conflict, NotFound)):
        await decide(service, asked)
    with pytest.raises(NotFound):
        await box.read(f"{GATE}/app")


async def test_a_session_that_ends_ends_the_wait(service: Service, cells: CellFactory) -> None:
    async with (
        cells(Runtime.CONTAINER, gates=EVERYTHING) as cell,
        at_gate(written(service, cell, f"{GATE}/app"), service) as (task, _),
    ):
        await cell.engine.destroy_session(OWNER, cell.id)
    assert isinstance(task.result(), SandboxLost)


# Whose gates


async def test_a_sub_agent_has_its_parents_gates(service: Service, box: Cell) -> None:
    request = pb.RunSubAgentRequest(parent_session_id=box.id)
    child = Cell(box.engine, (await service.answer("RunSubAgent", AGENT, request)).session_id)
    assert box.engine.get_session(OWNER, child.id).gates == EVERYTHING
    for work in (written(service, child, f"{GATE}/app"), allowed(service, child, add=["new.example"])):
        async with at_gate(work, service) as (task, asked):
            await decide(service, asked, approved=False)
        assert isinstance(task.result(), Denied)
    await written(service, child, "free")


async def test_a_second_session_of_the_tenant_has_them_too_before_and_after(
    service: Service, cells: CellFactory
) -> None:
    async with cells(Runtime.CONTAINER, tenant="gated-tenant") as earlier:
        await written(service, earlier, f"{GATE}/first")
        async with cells(Runtime.CONTAINER, tenant="gated-tenant", gates=EVERYTHING):
            pass
        async with cells(Runtime.CONTAINER, tenant="gated-tenant") as later:
            for cell in (earlier, later):
                async with at_gate(written(service, cell, f"{GATE}/app"), service) as (task, asked):
                    await decide(service, asked, approved=False)
                assert isinstance(task.result(), Denied)
    async with cells(Runtime.CONTAINER, tenant="another-tenant") as other:
        await written(service, other, f"{GATE}/app")
    for tenant in ("gated-tenant", "another-tenant"):
        delete = service.answer("DeleteWorkspace", AGENT, pb.DeleteWorkspaceRequest(tenant_id=tenant))
        if tenant == "another-tenant":
            assert (await delete).ok
            continue
        async with at_gate(delete, service) as (task, asked):
            assert asked.action == 'delete the workspace of tenant "gated-tenant" with all its files'
            await decide(service, asked)
        assert task.result().ok


async def test_a_new_session_of_a_gated_tenant_cannot_bring_a_wider_list(service: Service, cells: CellFactory) -> None:
    async with cells(Runtime.CONTAINER, tenant="listed-tenant", gates=Gates(egress=True)):
        pass
    request = pb.CreateSessionRequest(
        tenant_id="listed-tenant", allowed_hosts=["evil.example"], runtime_class="container"
    )
    async with at_gate(service.answer("CreateSession", AGENT, request), service) as (task, asked):
        assert asked.action == 'create a session of tenant "listed-tenant" that may reach "evil.example"'
        await decide(service, asked, approved=False)
    assert isinstance(task.result(), Denied)
    request.ClearField("tenant_id")
    made = (await service.answer("CreateSession", AGENT, request)).session_id
    await service.answer("DestroySession", AGENT, pb.DestroySessionRequest(session_id=made))


async def test_a_workspace_that_is_used_again_meanwhile_stays(service: Service, cells: CellFactory) -> None:
    async with cells(Runtime.CONTAINER, tenant="used-tenant", gates=Gates(workspace=True)):
        pass
    delete = service.answer("DeleteWorkspace", AGENT, pb.DeleteWorkspaceRequest(tenant_id="used-tenant"))
    async with at_gate(delete, service) as (task, asked), cells(Runtime.CONTAINER, tenant="used-tenant"):
        await decide(service, asked)
        async with asyncio.timeout(60):
            await task
    assert isinstance(task.result(), Conflict)


async def test_secrets_are_shown_to_a_sandbox_only_when_somebody_allows_it(service: Service, engine: Engine) -> None:
    await engine.set_secret(OWNER, "gate-test", "value", b"the value")
    request = pb.CreateSessionRequest(
        runtime_class="container",
        secret_refs=[pb.SecretRef(secret_name="gate-test", env_var="TOKEN")],
        gates=pb.Gates(secrets=True),
    )
    try:
        async with at_gate(service.answer("CreateSession", AGENT, request), service) as (task, asked):
            assert asked.action == 'create a session that sees the value of "gate-test:value" as "TOKEN"'
            sessions = len(engine.list_sessions(OWNER))
            await decide(service, asked, approved=False)
        assert isinstance(task.result(), Denied)
        assert len(engine.list_sessions(OWNER)) == sessions
        async with at_gate(service.answer("CreateSession", AGENT, request), service) as (task, asked):
            await decide(service, asked)
        made = Cell(engine, task.result().session_id)
        assert (await made.sh("echo $TOKEN")).stdout == b"the value\n"
        sub = service.answer("RunSubAgent", AGENT, pb.RunSubAgentRequest(parent_session_id=made.id))
        async with at_gate(sub, service) as (task, asked):
            await decide(service, asked, approved=False)
        assert isinstance(task.result(), Denied)
        sub = service.answer("RunSubAgent", AGENT, pb.RunSubAgentRequest(parent_session_id=made.id))
        async with at_gate(sub, service) as (task, asked):
            assert asked.session_id == made.id  # the parent's: found there, and ended with it
            await engine.destroy_session(OWNER, made.id)
        assert isinstance(task.result(), SandboxLost)
    finally:
        await engine.delete_secret(OWNER, "gate-test")


async def test_a_child_gets_nothing_that_was_taken_from_its_parent_while_the_question_waited(
    service: Service, engine: Engine, cells: CellFactory
) -> None:
    await engine.set_secret(OWNER, "late-test", "value", b"the value")
    ref = SecretRef(secret_name="late-test", key="value", env_var="TOKEN")
    hosts = ("a.example", "b.example")
    try:
        # The gate comes with a later session of the tenant: nobody is asked about this one itself.
        async with cells(Runtime.CONTAINER, tenant="late", secret_refs=(ref,), allowed_hosts=hosts) as parent:
            async with cells(Runtime.CONTAINER, tenant="late", gates=Gates(secrets=True)):
                pass
            request = pb.RunSubAgentRequest(parent_session_id=parent.id)
            async with at_gate(service.answer("RunSubAgent", AGENT, request), service) as (task, asked):
                assert await allowed(service, parent, remove=["b.example"]) == ["a.example"]
                await decide(service, asked)
            assert isinstance(task.result(), Conflict)
            async with at_gate(service.answer("RunSubAgent", AGENT, request), service) as (task, asked):
                await decide(service, asked)
            assert engine.get_session(OWNER, task.result().session_id).allowed_hosts == ("a.example",), "the control"
    finally:
        await engine.delete_secret(OWNER, "late-test")


async def test_a_tenants_gate_holds_for_the_children_of_a_session_that_was_there_before(
    service: Service, engine: Engine, cells: CellFactory
) -> None:
    await engine.set_secret(OWNER, "child-test", "value", b"the value")
    ref = SecretRef(secret_name="child-test", key="value", env_var="TOKEN")
    try:
        async with cells(Runtime.CONTAINER, tenant="secret-tenant", secret_refs=(ref,)) as earlier:
            first = await service.answer("RunSubAgent", AGENT, pb.RunSubAgentRequest(parent_session_id=earlier.id))
            assert first.session_id
            async with cells(Runtime.CONTAINER, tenant="secret-tenant", gates=Gates(secrets=True)):
                pass
            sub = service.answer("RunSubAgent", AGENT, pb.RunSubAgentRequest(parent_session_id=earlier.id))
            async with at_gate(sub, service) as (task, asked):
                await decide(service, asked, approved=False)
            assert isinstance(task.result(), Denied)
    finally:
        await engine.delete_secret(OWNER, "child-test")


async def test_gates_do_not_add_up_without_end(service: Service) -> None:
    made = []
    for batch in range(5):
        gates = pb.Gates(write_paths=[f"/workspace/{batch}-{number}" for number in range(64)])
        request = pb.CreateSessionRequest(runtime_class="container", tenant_id="many-gates", gates=gates)
        if batch == 4:
            with pytest.raises(InvalidSpec, match="gates"):
                await service.answer("CreateSession", AGENT, request)
        else:
            made.append((await service.answer("CreateSession", AGENT, request)).session_id)
    for session_id in made:
        await service.answer("DestroySession", AGENT, pb.DestroySessionRequest(session_id=session_id))


# Patterns


@pytest.mark.parametrize("pattern", ["(a", r"(a)\1", "", "x" * 600, "a{1001}"])
async def test_a_pattern_that_cannot_be_searched_safely_is_refused(service: Service, pattern: str) -> None:
    request = pb.CreateSessionRequest(runtime_class="container", gates=pb.Gates(commands=[pattern]))
    with pytest.raises(InvalidSpec, match=r"gates\.commands"):
        await service.answer("CreateSession", AGENT, request)


async def test_no_pattern_and_no_text_holds_up_the_server(service: Service, cells: CellFactory) -> None:
    async with cells(Runtime.CONTAINER, gates=Gates(commands=("(a*)*(a*)*b$", "(x+x+)+y"))) as cell:
        program = b"#" + b"a" * 400_000 + b"x" * 400_000
        request = pb.ExecRequest(session_id=cell.id, code=program, language="python")
        async with asyncio.timeout(60):
            assert (await service.answer("Exec", AGENT, request)).exit_code == 0
        request = pb.ExecRequest(session_id=cell.id, code=program + b"y", language="python")
        async with at_gate(service.answer("Exec", AGENT, request), service) as (task, asked):
            assert hashlib.sha256(program + b"y").hexdigest() in asked.action
            await decide(service, asked, approved=False)
        assert isinstance(task.result(), Denied)


@pytest.mark.parametrize("runtime", [Runtime.CONTAINER, Runtime.GVISOR])
async def test_the_question_shows_program_arguments_and_environment_and_no_other_program_runs(
    service: Service, cells: CellFactory, runtime: Runtime
) -> None:
    async with cells(runtime, gates=Gates(commands=("^deploy",))) as cell:
        script = "printf '#!/bin/sh\\necho \"$1\"\\n' > real; chmod +x real; mkdir bin first; ln -s ../real bin/deploy"
        assert (await cell.sh(script)).stderr == b""
        env = {"PATH": "first:/workspace/bin:/usr/bin:/bin", "LD_PRELOAD": "/workspace/\u202ex.so"}
        raw = {name: value.encode() for name, value in env.items()}
        request = pb.ExecRequest(session_id=cell.id, argv=[b"deploy", b"a b", b"c"], env=raw)
        async with at_gate(service.answer("Exec", AGENT, request), service) as (task, asked):
            assert asked.action.split("\n") == [
                'run a command as "root" in "/workspace", which matches the gate "^deploy"',
                '  program: "/workspace/bin/deploy", which is "/workspace/real", called "deploy"',
                rf'  environment: LD_PRELOAD="/workspace/\u202ex.so", PATH="{env["PATH"]}"',
                '  arguments: "a b", "c"',
            ]
            await decide(service, asked)
        assert task.result().stdout == "a b\n"
        async with at_gate(service.answer("Exec", AGENT, request), service) as (task, asked):
            await cell.sh("cp real first/deploy")
            await decide(service, asked)
        assert isinstance(task.result(), Conflict)
        too_much = pb.ExecRequest(
            session_id=cell.id, argv=[b"deploy"], env={f"A{number}": b"x" * 60 for number in range(60)}
        )
        with pytest.raises(InvalidSpec, match="put it into a file"):
            await service.answer("Exec", AGENT, too_much)
        assert not await pending(service)


async def test_a_secret_that_changes_which_program_runs_is_seen_in_the_question(
    service: Service, cells: CellFactory, engine: Engine
) -> None:
    await engine.set_secret(OWNER, "gate-path", "value", b"/workspace/evil:/usr/bin:/bin")
    ref = SecretRef(secret_name="gate-path", key="value", env_var="PATH")
    try:
        async with cells(Runtime.CONTAINER, gates=Gates(commands=("^ls",)), secret_refs=(ref,)) as cell:
            await cell.sh("mkdir evil; cp /bin/true evil/ls")
            request = pb.ExecRequest(session_id=cell.id, argv=[b"ls"])
            async with at_gate(service.answer("Exec", AGENT, request), service) as (task, asked):
                assert asked.action.split("\n")[1:] == [
                    '  program: "/workspace/evil/ls", called "ls"',
                    '  variables with secrets: "PATH"',
                    "  arguments: none",
                ]
                await decide(service, asked, approved=False)
            assert isinstance(task.result(), Denied)
            assert "\n" not in str(task.result()), "whoever is refused is told in short"
    finally:
        await engine.delete_secret(OWNER, "gate-path")


# The server's own gates, and its end


async def test_the_servers_gates_are_every_sessions_and_steps_are_told(host: Provisioned, data_dir: Path) -> None:
    steps: list[tuple[str, str, str]] = []
    settings = EngineSettings(data_dir=data_dir / "engine", gates=Gates(egress=True, write_paths=("deploy",)))
    told = lambda step, question: steps.append((step, question.asked_by, question.decided_by))  # noqa: E731
    async with Engine.open(settings, over(machine_for(data_dir, host)), at_gate=told) as engine:
        service = service_over(engine, data_dir)
        made = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER))
        cell = Cell(engine, made.session_id)
        assert made.gates == Gates(egress=True, write_paths=(GATE,))
        async with at_gate(written(service, cell, "deploy/app"), service) as (task, asked):
            await decide(service, asked)
        assert task.result().ok
        async with at_gate(written(service, cell, "deploy/app"), service) as (task, asked):
            await decide(service, asked, approved=False)
        wider = pb.CreateSessionRequest(allowed_hosts=["evil.example"], runtime_class="container")
        async with at_gate(service.answer("CreateSession", AGENT, wider), service) as (task, asked):
            assert asked.action == 'create a session that may reach "evil.example"'
            await decide(service, asked, approved=False)
        assert isinstance(task.result(), Denied)
        await service.answer("Exec", AGENT, pb.ExecRequest(session_id=cell.id, command="true"))
        await engine.destroy_all()
    passed = [GateStep.ASKED, GateStep.PASSED]
    refused = [GateStep.ASKED, GateStep.REFUSED]
    assert [step for step, _, _ in steps] == [*passed, *refused, *refused]
    assert {asker for _, asker, _ in steps} == {"key:agent"}
    assert [decider for step, _, decider in steps if step is not GateStep.ASKED] == ["key:phone"] * 3


async def test_a_call_that_nobody_decides_is_refused_with_what_was_asked_and_how_to_see_it(
    host: Provisioned, data_dir: Path
) -> None:
    settings = EngineSettings(data_dir=data_dir / "engine", gates=Gates(egress=True), approval_s=0.1)
    async with Engine.open(settings, over(machine_for(data_dir, host))) as engine:
        spec = SessionSpec(runtime=Runtime.CONTAINER, allowed_hosts=("new.example",))
        with pytest.raises(Denied) as caught:
            await engine.create_session(OWNER, spec)
        (asked,) = engine.list_approvals(OWNER, all=True)
        assert caught.value.approval_id == asked.approval_id
        for words in (asked.action, asked.approval_id, "in time", "k8e sandbox approvals list"):
            assert words in str(caught.value)


async def test_a_restart_keeps_the_gates_and_ends_the_questions(host: Provisioned, data_dir: Path) -> None:
    settings = EngineSettings(data_dir=data_dir / "engine")
    spec = SessionSpec(runtime=Runtime.CONTAINER, tenant="kept", gates=EVERYTHING)
    async with Engine.open(settings, over(machine_for(data_dir, host))) as engine:
        service, made = service_over(engine, data_dir), await engine.create_session(OWNER, spec)
        cell = Cell(engine, made.session_id)
        lost = asyncio.ensure_future(written(service, cell, f"{GATE}/app"))
        asked = (await waiting(service))[0]
        lost.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lost
    async with Engine.open(settings, over(machine_for(data_dir, host))) as engine:
        service, cell = service_over(engine, data_dir), Cell(engine, made.session_id)
        assert not await pending(service)
        with pytest.raises((Conflict, NotFound)):
            await decide(service, asked)
        assert engine.get_session(OWNER, cell.id).gates == EVERYTHING
        async with at_gate(written(service, cell, f"{GATE}/app"), service) as (task, again):
            await decide(service, again)
        assert task.result().ok
        await engine.destroy_session(OWNER, cell.id)
    async with Engine.open(settings, over(machine_for(data_dir, host))) as engine:
        service = service_over(engine, data_dir)
        delete = service.answer("DeleteWorkspace", AGENT, pb.DeleteWorkspaceRequest(tenant_id="kept"))
        async with at_gate(delete, service) as (task, asked):
            await decide(service, asked)
        assert task.result().ok
        await engine.destroy_all()


async def test_the_user_whose_agent_asked_may_decide_in_its_window_and_the_events_say_so(
    service: Service, box: Cell
) -> None:
    agent = as_uid(0)
    request = pb.WriteFileRequest(session_id=box.id, path=f"{GATE}/app", content="x")
    async with at_gate(service.answer("WriteFile", agent, request), service) as (task, asked):
        assert asked.asked_by == "uid:0"
        with pytest.raises(Denied, match="cannot decide"):
            await decide(service, asked, call=agent)
        window = StraightCall(replace(agent.caller))
        await decide(service, asked, call=window, presence="elicitation")
    assert task.result().ok
    events = [json.loads(row) for row in (await box.engine.events(OWNER, box.id)).events]
    told = {each["event"]: each for each in events}
    assert told["gate.asked"]["asked_by"] == "uid:0"
    assert told["gate.passed"]["decided_by"] == "uid:0 in an agent's window"
