"""What a record of the audit trail holds: who, what, which objects, what came of it; and never contents."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.audit import BUSY, BUSY_NOTE, MAIN, Journal, records, verify
from k8e.doors.service.auditing import LONG_S, OWNER_RECORDS, REFUSALS_IN_FULL, Auditing
from k8e.doors.service.edge import Stream
from k8e.doors.service.errors import outcome
from k8e.doors.service.naming import LOOKS, OBJECTS
from k8e.doors.service.record_quota import WINDOW_S
from k8e.doors.service.service import SERVICE
from k8e.engine.approvals import Approval
from k8e.errors import Conflict, Denied, DiskFull, Exhausted, InvalidSpec, K8eError, NotFound, Unauthenticated
from k8e.identity.callers import Role
from k8e.identity.presented import Presented, TcpPeer, UnixPeer
from k8e.model import ApprovalId, OwnerId, SandboxId, SessionId
from tests.support.calls import as_key, as_uid

pytestmark = pytest.mark.anyio

SECRET = "hunter2-never-to-be-seen"


class Kept:
    def __init__(self) -> None:
        self.records: list[dict[str, str | int | float | bool]] = []

    def add(self, fields: Mapping[str, str | int | float | bool]) -> None:
        self.records.append(dict(fields))


@pytest.fixture
def kept() -> Kept:
    return Kept()


async def test_a_call_is_recorded_with_who_what_and_the_outcome(kept: Kept) -> None:
    call = as_key("ci", owner="uid:7", role=Role.USER)
    with Auditing(kept, clock=lambda: 12.3456)("DestroySession", call, pb.DestroySessionRequest(session_id="s")):
        pass
    assert kept.records == [
        {
            "time": 12.346,
            "duration_ms": 0,
            "identity": "key:ci",
            "owner": "uid:7",
            "via": "key",
            "rpc": "DestroySession",
            "session_id": "s",
            "outcome": "OK",
        }
    ]


async def test_an_administrator_that_speaks_for_an_owner_is_recorded_as_itself(kept: Kept) -> None:
    call = as_uid(0, role=Role.ADMIN, speaks_for="uid:1000")
    with Auditing(kept)("DestroySession", call, pb.DestroySessionRequest(session_id="s")):
        pass
    assert (kept.records[0]["identity"], kept.records[0]["owner"]) == ("uid:0", "uid:1000")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotFound("session", "s"), "NOT_FOUND"),
        (Denied("no"), "PERMISSION_DENIED"),
        (Exhausted("later"), "RESOURCE_EXHAUSTED"),
        (asyncio.CancelledError(), "CANCELLED"),
    ],
)
async def test_a_failure_is_recorded_and_passed_on(kept: Kept, error: BaseException, outcome: str) -> None:
    with pytest.raises(type(error)), Auditing(kept)("Exec", as_uid(1), pb.ExecRequest(session_id="s")):
        raise error
    assert kept.records[0]["outcome"] == outcome


async def test_looking_leaves_no_record_unless_it_is_denied(kept: Kept) -> None:
    step = Auditing(kept)
    with step("GetSession", as_uid(1), pb.GetSessionRequest(session_id="s")):
        pass
    with pytest.raises(NotFound), step("GetSession", as_uid(1), pb.GetSessionRequest(session_id="s")):
        raise NotFound("session", "s")
    assert kept.records == []
    with pytest.raises(Denied), step("GetSession", as_uid(1), pb.GetSessionRequest(session_id="s")):
        raise Denied("an approver may not")
    with step("ReadFile", as_uid(1), pb.ReadFileRequest(session_id="s", path="/etc/passwd")):
        pass
    assert [each["rpc"] for each in kept.records] == ["GetSession", "ReadFile"]
    assert kept.records[1]["path"] == "/etc/passwd"


@pytest.mark.parametrize("stop", [False, True])
async def test_looking_on_leaves_a_record_where_it_may_stop_what_it_looks_at(kept: Kept, stop: bool) -> None:
    with Auditing(kept)("AttachExec", as_uid(1), pb.AttachExecRequest(session_id="s", exec_id="e", stop=stop)):
        pass
    assert [(each["rpc"], each["exec_id"], each["stop"]) for each in kept.records] == [("AttachExec", "e", True)] * stop


async def test_what_a_call_made_is_named(kept: Kept) -> None:
    with Auditing(kept)("CreateSession", as_uid(1), pb.CreateSessionRequest(tenant_id="t")) as answered:
        answered(pb.CreateSessionResponse(session_id="sess-new"))
    assert (kept.records[0]["session_id"], kept.records[0]["tenant_id"]) == ("sess-new", "t")


async def test_a_decision_is_recorded_as_what_it_was(kept: Kept) -> None:
    for approved in (True, False):
        with Auditing(kept)("ApproveAction", as_uid(1), pb.ApproveActionRequest(approval_id="a", approved=approved)):
            pass
    assert [each["approved"] for each in kept.records] == [True, False]


async def test_of_a_stream_the_first_message_names_the_objects(kept: Kept) -> None:
    class Stream:
        first = pb.ExecInput(start=pb.ExecRequest(session_id="s", command=SECRET))

    with Auditing(kept)("ExecAttach", as_uid(1), Stream()):
        pass
    Stream.first = None  # type: ignore[assignment]  # a caller that went away before it
    with Auditing(kept)("ExecAttach", as_uid(1), Stream()):
        pass
    assert [each.get("session_id") for each in kept.records] == ["s", None]
    assert SECRET not in json.dumps(kept.records)


@pytest.mark.parametrize(
    ("rpc", "request_", "named"),
    [
        (
            "WriteStream",
            pb.WriteStreamRequest(open=pb.WriteStreamOpen(session_id="s", path_bytes=b"/workspace/\xff")),
            {"session_id": "s", "path": "/workspace/\\xff"},
        ),
        (
            "MoveFile",
            pb.MoveFileRequest(session_id="s", source_bytes=b"/workspace/a", target="/workspace/b"),
            {"session_id": "s", "source": "/workspace/a", "target": "/workspace/b"},
        ),
        (
            "UpdateAllowedHosts",
            pb.UpdateAllowedHostsRequest(session_id="s", add=["a.example", "b.example"]),
            {"session_id": "s", "add": "a.example,b.example"},
        ),
        (
            "UpdateLabels",
            pb.UpdateLabelsRequest(session_id="s", set={"task": SECRET}, remove=["a", "b"]),
            {"session_id": "s", "set": "task", "remove": "a,b"},
        ),
        (
            "CreateSession",
            pb.CreateSessionRequest(labels={"task": SECRET}),
            {"labels": "task"},
        ),
        (
            "CreateApiKey",
            pb.CreateApiKeyRequest(name="eve", owner="uid:1000", role="approver"),
            {"name": "eve", "for_owner": "uid:1000", "role": "approver", "owner": "uid:1"},
        ),
        (
            "ApproveAction",
            pb.ApproveActionRequest(approval_id="a", reason="read it", presence="terminal"),
            {"approval_id": "a", "reason": "read it", "presence": "terminal"},
        ),
    ],
)
async def test_what_a_call_is_about_is_named(kept: Kept, rpc: str, request_: object, named: dict[str, str]) -> None:
    with Auditing(kept)(rpc, as_uid(1), request_):
        pass
    assert named.items() <= kept.records[0].items()
    assert SECRET not in json.dumps(kept.records)


@pytest.mark.parametrize("method", list(SERVICE.methods), ids=lambda method: method.name)
async def test_whoever_streams_names_its_session(kept: Kept, method: object) -> None:
    """Wherever a request has the name of a session, in itself or in what opens its stream, the record has it."""
    from google.protobuf.message_factory import GetMessageClass

    message = GetMessageClass(method.input_type)()  # type: ignore[attr-defined]  # a descriptor has no public type
    inside = [field for field in message.DESCRIPTOR.fields if field.containing_oneof and field.message_type]
    holders = [message, *(getattr(message, field.name) for field in inside)]
    holders = [each for each in holders if "session_id" in each.DESCRIPTOR.fields_by_name]
    for each in holders:
        each.session_id = "sess-named"
    with pytest.raises(Denied), Auditing(kept)(method.name, as_uid(1), message):  # type: ignore[attr-defined]
        raise Denied("so that it is recorded")
    assert kept.records[0].get("session_id") == ("sess-named" if holders else None)


@pytest.mark.parametrize("method", list(SERVICE.methods), ids=lambda method: method.name)
async def test_no_record_holds_contents(kept: Kept, method: object) -> None:
    """Every text and bytes field that is not an object's name is filled with something that must not be seen."""
    from google.protobuf.message_factory import GetMessageClass

    message = GetMessageClass(method.input_type)()  # type: ignore[attr-defined]  # a descriptor has no public type
    for field in message.DESCRIPTOR.fields:
        if field.name.removesuffix("_bytes") in OBJECTS or field.is_repeated:
            continue
        if field.type == field.TYPE_STRING:
            setattr(message, field.name, SECRET)
        elif field.type == field.TYPE_BYTES:
            setattr(message, field.name, SECRET.encode())
    with Auditing(kept)(method.name, as_uid(1), message):  # type: ignore[attr-defined]
        pass
    assert SECRET not in json.dumps(kept.records)
    assert bool(kept.records) == (method.name not in LOOKS)  # type: ignore[attr-defined]


async def test_huge_names_are_cut(kept: Kept) -> None:
    with Auditing(kept)("DestroySession", as_uid(1), pb.DestroySessionRequest(session_id="x" * 10**6)):
        pass
    assert len(json.dumps(kept.records)) < 1000


async def test_strangers_are_recorded_and_cannot_fill_the_disk(kept: Kept) -> None:
    step = Auditing(kept)
    tcp = Presented(peer=TcpPeer(("203.0.113.9", 999), ("10.0.0.1", 50051)), authorization=f"Bearer {SECRET}")
    for _ in range(5000):
        step.refused("Exec", tcp, Unauthenticated("unknown key"))
    step.refused("Exec", Presented(peer=UnixPeer(1000), owner="x" * 10**6), Denied("only administrators"))
    assert 50 < len(kept.records) < 120
    assert kept.records[0]["peer"] == "203.0.113.9:999"
    assert kept.records[0]["outcome"] == "UNAUTHENTICATED"
    assert SECRET not in json.dumps(kept.records)
    assert len(json.dumps(kept.records[-1])) < 1000


async def test_a_call_that_lasts_is_recorded_before_its_end_too(kept: Kept) -> None:
    later: list[Callable[[], None]] = []

    class Timer:
        def __init__(self, _delay_s: float, run: Callable[[], None]) -> None:
            later.append(run)

        def cancel(self) -> None:
            later.append(lambda: None)

    with Auditing(kept, later=Timer)("ExecStream", as_uid(1), pb.ExecRequest(session_id="s")):
        later[0]()
        assert [(each["session_id"], each["outcome"]) for each in kept.records] == [("s", "BEGUN")]
    assert [each["outcome"] for each in kept.records] == ["BEGUN", "OK"]
    assert len(later) == 2, "a call that ends has no timer left"


async def test_a_decision_is_recorded_with_who_when_and_why(kept: Kept) -> None:
    call = as_uid(1000)
    asked = pb.ConfirmActionRequest(session_id="s", action="drop the table")
    decided = pb.ApproveActionRequest(approval_id="a", approved=False, reason="not on a Friday", presence="terminal")
    step = Auditing(kept, clock=lambda: 12.0)
    with step("ConfirmAction", call, asked) as hear:
        hear(pb.ConfirmActionResponse(approval_id="a", status="pending"))
    with step("ApproveAction", call, decided) as hear:
        hear(pb.ApproveActionResponse(ok=True))
    question, answer = kept.records
    assert {key: question[key] for key in ("action", "approval_id", "status")} == {
        "action": "drop the table", "approval_id": "a", "status": "pending",
    }  # fmt: skip
    assert {key: answer[key] for key in ("identity", "time", "approved", "reason", "presence")} == {
        "identity": "uid:1000", "time": 12.0, "approved": False, "reason": "not on a Friday", "presence": "terminal",
    }  # fmt: skip


async def test_each_step_at_a_gate_is_a_record_and_a_refused_call_names_the_question(kept: Kept) -> None:
    step = Auditing(kept, clock=lambda: 12.0)
    question = Approval(
        approval_id=ApprovalId("a"),
        owner=OwnerId("uid:7"),
        session_id=SessionId("s"),
        sandbox=SandboxId("sb"),
        action="write " + "x" * 1000,
        asked_by="key:agent",
        asked_at=1.0,
        expires_at=300.0,
    )
    step.at_gate("asked", question)
    step.at_gate("refused", question.decided("key:phone", approved=False, reason="no", now=2.0))
    first, second = kept.records
    assert (first["gate"], first["identity"], first["owner"], first["status"]) == (
        "asked", "key:agent", "uid:7", "pending",
    )  # fmt: skip
    assert (second["gate"], second["decided_by"], second["reason"]) == ("refused", "key:phone", "no")
    assert len(str(second["action"])) <= 256
    with (
        pytest.raises(Denied),
        step("WriteFile", as_key("agent", owner="uid:7"), pb.WriteFileRequest(session_id="s", path="p")),
    ):
        raise Denied("key:phone refused", approval_id="a")
    assert (kept.records[2]["approval_id"], kept.records[2]["outcome"]) == ("a", "PERMISSION_DENIED")


class Timers:
    """What is to be done later, done when the test says so."""

    def __init__(self) -> None:
        self.last: dict[float, Callable[[], None]] = {}

    def __call__(self, delay_s: float, run: Callable[[], None]) -> Timers:
        self.last[delay_s] = run
        return self

    def cancel(self) -> None:
        pass


def _refuse(step: Auditing, uid: int, times: int, rpc: str = "DestroySession") -> None:
    for _ in range(times):
        with (
            contextlib.suppress(NotFound),
            step(rpc, as_uid(uid), pb.DestroySessionRequest(session_id="not-mine")),
        ):
            raise NotFound("session", "not-mine")


def _change(step: Auditing, uid: int, times: int) -> None:
    for number in range(times):
        with step("DestroySession", as_uid(uid), pb.DestroySessionRequest(session_id=f"s{number}")):
            pass


async def test_refusals_are_written_a_few_times_and_then_counted(kept: Kept) -> None:
    now = [1000.0]
    step = Auditing(kept, clock=lambda: now[0])
    _refuse(step, 1, 500)
    now[0] += 30
    _refuse(step, 1, 500)
    _refuse(step, 2, 1)
    _change(step, 1, 1)
    assert [each["identity"] for each in kept.records] == ["uid:1"] * REFUSALS_IN_FULL + ["uid:2", "uid:1"]
    assert kept.records[-1]["outcome"] == "OK"
    now[0] += 60
    _refuse(step, 1, 1)
    assert kept.records[-2:][0] == {
        "time": 1000.0,
        "until": 1030.0,
        "identity": "uid:1",
        "owner": "uid:1",
        "via": "unix",
        "rpc": "DestroySession",
        "outcome": "NOT_FOUND",
        "not_recorded": 1000 - REFUSALS_IN_FULL,
    }
    assert kept.records[-1]["session_id"] == "not-mine", "a new window begins with what is written in full"


async def test_what_was_counted_is_told_in_its_time_and_when_the_server_stops(kept: Kept) -> None:
    timers = Timers()
    step = Auditing(kept, clock=lambda: 1000.0, later=timers)
    _refuse(step, 1, 10)
    before = len(kept.records)
    timers.last[WINDOW_S]()
    assert [each["not_recorded"] for each in kept.records[before:]] == [10 - REFUSALS_IN_FULL]
    _refuse(step, 1, 5)
    for _ in range(200):
        step.refused("Exec", Presented(peer=UnixPeer(9)), Unauthenticated("who"))
    before = len(kept.records)
    step.finish()
    told = [each.get("not_recorded", each.get("not_recorded_before")) for each in kept.records[before:]]
    assert told == [5 - REFUSALS_IN_FULL, 100]
    before = len(kept.records)
    step.finish()
    assert len(kept.records) == before


async def test_neither_many_kinds_of_refusals_nor_many_callers_fill_the_trail(kept: Kept) -> None:
    step = Auditing(kept, clock=lambda: 1000.0)
    for number in range(1000):
        _refuse(step, 1, 5, rpc=f"Call{number}")
    step.finish()
    assert len(kept.records) < 200
    told = sum(int(each.get("not_recorded", 0)) for each in kept.records)
    in_full = sum("not_recorded" not in each for each in kept.records)
    assert told + in_full == 5000
    before = len(kept.records)
    for uid in range(10_000):
        _refuse(step, uid, 1)
    step.finish()
    assert len(kept.records) - before < 6000


@pytest.mark.parametrize("most", [OWNER_RECORDS, 20])
async def test_an_owner_that_does_much_leaves_room_for_what_others_did(kept: Kept, most: int) -> None:
    busy = Kept()
    step = Auditing(kept, busy=busy, owner_records=most, clock=lambda: 1000.0)
    _change(step, 1, most + 1000)
    _change(step, 2, 1)
    step.finish()
    assert [each["identity"] for each in kept.records] == ["uid:1"] * most + ["uid:2", "server"]
    assert (kept.records[-1]["rpc"], kept.records[-1]["in_busy_trail"]) == (BUSY_NOTE, 1000)
    done = [each["session_id"] for each in (*kept.records, *busy.records) if each["identity"] == "uid:1"]
    assert done == [f"s{number}" for number in range(most + 1000)], "nothing that was done is lost"


async def test_a_refusal_that_somebody_waited_for_is_always_written(kept: Kept) -> None:
    timers = Timers()
    step = Auditing(kept, clock=lambda: 1000.0, later=timers)
    for _ in range(10):
        with (
            contextlib.suppress(Denied),
            step("Exec", as_uid(1), pb.ExecRequest(session_id="s")),
        ):
            raise Denied("a person said no", approval_id="a")
    assert [each["approval_id"] for each in kept.records] == ["a"] * 10
    kept.records.clear()
    for _ in range(10):
        with contextlib.suppress(NotFound), step("Exec", as_uid(1), pb.ExecRequest(session_id="s")):
            timers.last[LONG_S]()
            raise NotFound("session", "s")
    assert [each["outcome"] for each in kept.records] == ["BEGUN", "NOT_FOUND"] * 10


async def test_a_call_that_failed_after_it_began_is_always_written(kept: Kept) -> None:
    """What an agent inside answers, or a disk that is full half-way, says nothing of what was done before."""
    step = Auditing(kept, clock=lambda: 1000.0)
    errors = [NotFound("file", "f"), InvalidSpec("io"), Conflict("c"), Exhausted("e"), DiskFull("/d"), Denied("d")]
    for error in errors * 10:
        with contextlib.suppress(K8eError), step("RemoveFile", as_uid(1), pb.RemoveFileRequest(session_id="s")):
            await asyncio.sleep(0)
            raise error
    assert [each["outcome"] for each in kept.records] == [outcome(error) for error in errors] * 10
    kept.records.clear()
    for error in errors * 10:
        with contextlib.suppress(K8eError), step("RemoveFile", as_uid(2), pb.RemoveFileRequest(session_id="s")):
            raise error
    assert len(kept.records) < len(errors) * 10, "what failed at once is counted"


async def _messages(*messages: pb.WriteStreamRequest) -> AsyncIterator[pb.WriteStreamRequest]:
    """As they come from a slow caller, the first one; the others are there already."""
    for number, message in enumerate(messages):
        if not number:
            await asyncio.sleep(0)
        yield message


@pytest.mark.parametrize("read", [0, 1, 2])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_stream_is_refused_only_by_its_first_message(kept: Kept, read: int, waits: bool) -> None:
    step = Auditing(kept, clock=lambda: 1000.0)
    opening = pb.WriteStreamRequest(open=pb.WriteStreamOpen(session_id="s", path="f", append=True))
    for _ in range(20):
        stream = Stream(_messages(*[opening] * read))
        with contextlib.suppress(InvalidSpec), step("WriteStream", as_uid(1), stream):
            for _ in range(read):
                await anext(stream)
            if waits and read:
                await asyncio.sleep(0)
            raise InvalidSpec("may come only once", field="open")
    is_refusal = read == 0 or (read == 1 and not waits)
    assert len(kept.records) == (REFUSALS_IN_FULL if is_refusal else 20)


async def test_on_disk_a_flood_does_not_push_out_what_others_did(tmp_path: Path) -> None:
    main, busy = (Journal(tmp_path, name=name, kept_bytes=200_000, files=2) for name in (MAIN, BUSY))
    step = Auditing(main, busy=busy)
    _change(step, 2, 1)
    _refuse(step, 1, 5000)
    _change(step, 1, 5000)
    step.finish()
    main.close()
    busy.close()
    assert verify(tmp_path).ok
    found = list(records(tmp_path))
    assert ("uid:2", "OK") in {(each["identity"], each["outcome"]) for each in found}
    assert found[-1]["rpc"] == BUSY_NOTE or found[-1]["identity"] == "uid:1"
    shutil.rmtree(tmp_path / BUSY)
    assert "cut off" in verify(tmp_path).problem or "missing" in verify(tmp_path).problem
    (tmp_path / "server" / f"{BUSY}.key").unlink()
    assert "missing" in verify(tmp_path).problem


async def test_a_record_stays_small_whatever_its_names_are_made_of(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    step = Auditing(journal)
    worst = "\N{GRINNING FACE}" * 1000
    for name in (worst, "\x01" * 1000, "plain"):
        with step("MoveFile", as_uid(1), pb.MoveFileRequest(session_id="s", source=name, target=name)):
            await asyncio.sleep(0)
    journal.close()
    lines = [line for path in (tmp_path / MAIN).glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert len(lines) == 3
    assert max(map(len, lines)) < 2048
    assert b'"plain"' in lines[-1]
