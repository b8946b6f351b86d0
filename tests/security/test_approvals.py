"""Attacks on approvals, through the whole service over the real engine: each refused beside one that goes well."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k8e import client as sdk
from k8e._proto import sandbox_pb2 as pb
from k8e.audit import records
from k8e.client import Gates, SandboxClient, SandboxError
from k8e.doors.service import Service
from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.errors import Conflict, Denied, InvalidSpec, K8eError, NotFound
from k8e.identity.callers import Role
from k8e.model import Runtime, SessionSpec
from k8e.setup.provision import Provisioned
from tests.support.calls import StraightCall, as_key, as_uid, service_over
from tests.support.cells import OWNER, Cell, CellFactory
from tests.support.engines import machine_for
from tests.support.leaks import Lend
from tests.support.servers import NO_POOL, Server
from tests.support.substrates import over

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
    events = [json.loads(row) for row in (await box.engine.events(OWNER, box.id)).events]
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
    settings = EngineSettings(data_dir=data_dir / "engine")
    async with Engine.open(settings, over(machine_for(data_dir, host))) as engine:
        kept = await engine.create_session(OWNER, AGENT_SPEC)
        service, box = service_over(engine, data_dir), Cell(engine, kept.session_id)
        waiting, decided = await _ask(service, box), await _ask(service, box)
        await _decide(service, PERSON, decided)
    async with Engine.open(settings, over(machine_for(data_dir, host))) as engine:
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


# A person, over the real doors


APPROVE = """
import sys
from k8e.client.errors import SandboxError
from k8e.client.light.unix import UnixCalls
if sys.argv[4] != "-":
    import fcntl, termios
    fcntl.ioctl(int(sys.argv[4]), termios.TIOCSCTTY, 0)
request = {"approval_id": sys.argv[2], "approved": True, "reason": "seen", "presence": sys.argv[3]}
try:
    UnixCalls(sys.argv[1]).unary("ApproveAction", request)
except SandboxError as error:
    sys.exit(str(error))
"""


def approve_raw(server: Server, approval_id: str, presence: str, *, tty: int | None = None) -> str:
    """What the server says to a process that says where its person is; nothing when it is content."""
    socket = str(server.data_dir / "server" / "k8e.sock")
    words = [sys.executable, "-c", APPROVE, socket, approval_id, presence, "-" if tty is None else str(tty)]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        pass_fds=() if tty is None else [tty],
    )
    return done.stderr.strip()


def trail(server: Server, wanted: Callable[[Mapping[str, object]], bool]) -> Mapping[str, object]:
    """A record of the audit trail, which is written a moment after the call."""
    end = time.monotonic() + 60
    while True:
        if found := next(filter(wanted, records(server.data_dir)), None):
            return found
        assert time.monotonic() < end
        time.sleep(0.01)


def test_only_a_process_with_a_terminal_is_a_person_at_one_and_the_trail_says_who_when_and_why(server: Server) -> None:
    master, slave = pty.openpty()
    began = time.time()
    try:
        with SandboxClient(target=server.target()) as client, client.create("container") as session:
            approval_id = session.confirm("drop the table", timeout=0).approval_id
            assert "has no terminal" in approve_raw(server, approval_id, "terminal")
            with (
                SandboxClient(target=server.by_tls()) as elsewhere,
                pytest.raises(sdk.Denied, match="without --endpoint"),
            ):
                elsewhere.approve(approval_id, presence="terminal")
            assert "cannot decide it" in approve_raw(server, approval_id, "", tty=slave)
            assert "not one of" in approve_raw(server, approval_id, "television", tty=slave)
            made = client.create_api_key("agent-key", owner=client.whoami().owner)
            try:
                with SandboxClient(target=replace(server.target(), api_key=made.key)) as agent:
                    for presence in ("terminal", "elicitation"):
                        with pytest.raises(sdk.Denied, match="no person"):
                            agent.approve(approval_id, presence=presence)
            finally:
                client.delete_api_key("agent-key")
            assert client.confirmed(approval_id, timeout=0.01).status == "pending"
            assert approve_raw(server, approval_id, "terminal", tty=slave) == ""
            decided = client.confirmed(approval_id)
            assert (decided.approved, decided.decided_by) == (True, "uid:0 at a terminal")
    finally:
        os.close(slave)
        os.close(master)
    asked = trail(server, lambda each: each.get("rpc") == "ConfirmAction" and each.get("approval_id") == approval_id)
    assert (asked["identity"], asked["action"]) == ("uid:0", "drop the table")
    said = trail(
        server,
        lambda each: (
            (each.get("rpc"), each.get("approval_id"), each.get("outcome")) == ("ApproveAction", approval_id, "OK")
        ),
    )
    assert (said["identity"], said["approved"], said["reason"], said["presence"]) == ("uid:0", True, "seen", "terminal")
    assert began <= float(str(said["time"])) <= time.time()
    denied = trail(server, lambda each: each.get("identity") == "key:agent-key" and each.get("rpc") == "ApproveAction")
    assert denied["outcome"] == "PERMISSION_DENIED"


def test_an_operator_gates_every_session_and_believes_in_no_terminal(host: Provisioned, lend: Lend) -> None:
    flags = (*NO_POOL, "--gates", "write=/workspace/deploy", "--approve-in-person=false")
    server = Server(lend("strict"), *flags)
    server.start()
    master, slave = pty.openpty()
    try:
        with SandboxClient(target=server.target()) as client:
            made = client.create_api_key("phone", role="approver", owner="uid:0")
            with SandboxClient(target=replace(server.target(), api_key=made.key)) as person:
                session_id = client.create_session("container")
                assert client.get(session_id).gates == Gates(write_paths=("/workspace/deploy",))
                with ThreadPoolExecutor(1) as pool:
                    writing = pool.submit(client.write_file, session_id, "deploy/app", "new")
                    while not (asked := person.approvals()):
                        assert not writing.done()
                    for presence in ("terminal", "elicitation"):
                        told = approve_raw(server, asked[0].approval_id, presence, tty=slave)
                        assert "another identity" in told
                    person.approve(asked[0].approval_id, reason="go")
                    assert writing.result(60) == 3
        steps = [trail(server, lambda each, step=step: each.get("gate") == step) for step in ("asked", "passed")]  # type: ignore[misc]
        assert [step["identity"] for step in steps] == ["uid:0"] * 2
        assert (steps[1]["decided_by"], steps[1]["reason"]) == ("key:phone", "go")
    finally:
        os.close(slave)
        os.close(master)
        server.destroy()


def test_a_server_that_is_killed_while_a_call_waits_leaves_a_question_that_nobody_can_answer(
    host: Provisioned, lend: Lend
) -> None:
    server = Server(lend("killed"), *NO_POOL)
    server.start()
    try:
        with SandboxClient(target=server.target()) as client:
            made = client.create_api_key("phone", role="approver", owner="uid:0")
            session_id = client.create_session("container", gates=Gates(write_paths=("/workspace/deploy",)))
            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(client.write_file, session_id, "deploy/app", "new")
                with SandboxClient(target=replace(server.target(), api_key=made.key)) as person:
                    while not (asked := person.approvals()):
                        assert not writing.done()
                server.kill()
                with pytest.raises(SandboxError):
                    writing.result(60)
            server.start()
        with (
            SandboxClient(target=server.target()) as client,
            SandboxClient(target=replace(server.target(), api_key=made.key)) as person,
        ):
            assert not person.approvals()
            with pytest.raises(sdk.Conflict, match="expired"):
                person.approve(asked[0].approval_id)
            # The same call again is a question of its own, and its answer is heard.
            with ThreadPoolExecutor(1) as pool:
                again = pool.submit(client.write_file, session_id, "deploy/app", "new")
                while not (second := person.approvals()):
                    assert not again.done()
                person.approve(second[0].approval_id)
                assert again.result(60) == 3
            assert second[0].approval_id != asked[0].approval_id
    finally:
        server.destroy()
