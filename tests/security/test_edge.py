"""What is done around every call holds through both doors alike: rates, audit, traces, and who may approve."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc
import pytest
from grpc import aio
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client.channels import open_channel
from k8e.doors.service.auditing import Auditing
from k8e.doors.service.rates import Rates
from k8e.identity import Role
from k8e.telemetry.traces import Tracing
from tests.support.connect import ConnectDoor, connect_door

pytestmark = pytest.mark.anyio

ME = f"uid:{os.geteuid()}"
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Kept:
    def __init__(self) -> None:
        self.records: list[dict[str, str | int | float | bool]] = []

    def add(self, fields: Mapping[str, str | int | float | bool]) -> None:
        self.records.append(dict(fields))


async def _grpc_make(doors: ConnectDoor, tenant: str, **metadata: str) -> str:
    """The code of one CreateSession over a connection of its own."""
    sent = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
    async with open_channel(doors.door.target) as channel:
        try:
            await SandboxStub(channel).CreateSession(pb.CreateSessionRequest(tenant_id=tenant), metadata=sent)
        except aio.AioRpcError as error:
            return error.code().name
    return "OK"


async def _json_make(doors: ConnectDoor, tenant: str, **headers: str) -> str:
    async with doors.wire() as wire:
        reply = await wire.ask("CreateSession", {"tenant_id": tenant}, **headers)
    return "OK" if reply.status == 200 else str(reply.json["code"]).upper()


async def test_no_door_connection_key_header_or_tenant_evades_the_rate(tmp_path: Path) -> None:
    async with connect_door(tmp_path, steps=[Rates(writes_per_s=0.0001, reads_per_s=0)]) as doors:
        _, mine = doors.door.keys.create("mine", role=Role.ADMIN, owner=ME, ttl_s=0)
        _, other = doors.door.keys.create("other", role=Role.USER, owner="", ttl_s=0)
        assert await _grpc_make(doors, "t") == "OK"
        tries = [
            await _grpc_make(doors, "another-tenant"),
            await _grpc_make(doors, "t", x_sandbox_tenant="another"),
            await _grpc_make(doors, "t", authorization=f"Bearer {mine}"),
            await _grpc_make(doors, "t", k8e_owner="uid:4711"),
            await _json_make(doors, "t"),
            await _json_make(doors, "another-tenant", authorization=f"Bearer {mine}"),
            await _json_make(doors, "t", k8e_owner="uid:4712", x_forwarded_for="203.0.113.9"),
        ]
        assert tries == ["RESOURCE_EXHAUSTED"] * len(tries)
        assert await _grpc_make(doors, "t", authorization=f"Bearer {other}") == "OK", "another owner has its own share"


async def test_a_refusal_says_when_to_come_again_through_both_doors(tmp_path: Path) -> None:
    async with connect_door(tmp_path, steps=[Rates(writes_per_s=0.5, reads_per_s=0, clock=lambda: 0.0)]) as doors:
        assert await _json_make(doors, "t") == "OK"
        async with doors.wire() as wire:
            reply = await wire.ask("CreateSession", {})
        assert (reply.status, reply.headers["k8e-retry-after-s"]) == (429, "2.000")
        async with open_channel(doors.door.target) as channel:
            with pytest.raises(aio.AioRpcError) as refused:
                await SandboxStub(channel).CreateSession(pb.CreateSessionRequest())
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.value.trailing_metadata() or ())["k8e-retry-after-s"] == "2.000"


async def test_both_doors_leave_the_same_record(tmp_path: Path) -> None:
    kept = Kept()
    async with connect_door(tmp_path, steps=[Auditing(kept)]) as doors:
        assert await _grpc_make(doors, "t") == "OK"
        assert await _json_make(doors, "t") == "OK"
        async with doors.wire() as wire:
            await wire.ask_stream("ExecStream", {"session_id": "none-such", "command": "true"})
    # A record may be written a moment after its answer, so the two can change places.
    shown = sorted((each["rpc"], each["identity"], each["tenant_id"], each["via"]) for each in kept.records[:2])
    assert shown == [("CreateSession", ME, "t", "loopback"), ("CreateSession", ME, "t", "unix")]
    assert all(str(each["session_id"]).startswith("sess-") for each in kept.records[:2])
    assert (kept.records[2]["session_id"], kept.records[2]["outcome"]) == ("none-such", "NOT_FOUND")


@pytest.mark.parametrize("second", [pb.ExecInput(stdin=b"x"), pb.ExecInput(start=pb.ExecRequest())])
async def test_what_ran_before_a_bad_message_is_written_each_time(tmp_path: Path, second: pb.ExecInput) -> None:
    kept = Kept()
    async with connect_door(tmp_path, steps=[Auditing(kept)]) as doors, open_channel(doors.door.target) as channel:
        stub = SandboxStub(channel)
        session_id = (await stub.CreateSession(pb.CreateSessionRequest())).session_id
        start = pb.ExecInput(start=pb.ExecRequest(session_id=session_id, command="sleep 60"))
        for messages in [[start, second]] * 10 + [[second]] * 10:
            with pytest.raises(aio.AioRpcError) as refused:
                async for _ in stub.ExecAttach(_each(messages)):
                    pass
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    refusals = [each for each in kept.records if each["rpc"] == "ExecAttach"]
    assert [each["outcome"] for each in refusals[:10]] == ["INVALID_ARGUMENT"] * 10
    assert sum("session_id" in each for each in refusals) == 10
    assert len(refusals) < 20, "what never ran is counted"


async def test_what_was_written_before_a_bad_message_is_recorded_each_time(tmp_path: Path) -> None:
    """All messages of a call lie ready here, so that nothing is waited for between them."""
    kept = Kept()
    async with connect_door(tmp_path, steps=[Auditing(kept)]) as doors, doors.wire() as wire:
        made = (await wire.ask("CreateSession", {})).json["session_id"]
        begin = {"open": {"session_id": made, "path": "f", "append": True}}
        for messages in [[begin, {"data": "eA=="}, begin]] * 10 + [[{"data": "eA=="}]] * 10:
            async with doors.wire() as other:
                reply = await other.ask_stream("WriteStream", *messages)
            assert reply.end["error"]["code"] == "invalid_argument"
    records = [each for each in kept.records if each["rpc"] == "WriteStream"]
    assert [each["outcome"] for each in records[:10]] == ["INVALID_ARGUMENT"] * 10
    assert sum(each.get("path") == "f" for each in records) == 10
    assert len(records) < 20, "what was never opened is counted"


async def _each(messages: list[pb.ExecInput]) -> AsyncIterator[pb.ExecInput]:
    for message in messages:
        yield message


async def test_both_doors_continue_the_callers_trace(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter))
    async with connect_door(tmp_path, steps=[tracing]) as doors:
        await _grpc_make(doors, "t", traceparent=TRACEPARENT)
        await _json_make(doors, "t", traceparent=TRACEPARENT)
        await _json_make(doors, "t")
    tracing.close()
    traces = [f"{span.context.trace_id:032x}" for span in exporter.get_finished_spans()]
    assert [trace == TRACE for trace in traces] == [True, True, False]


async def test_the_person_with_a_key_approves_what_the_local_agent_asked(tmp_path: Path) -> None:
    kept = Kept()
    async with connect_door(tmp_path, steps=[Auditing(kept)]) as doors:
        _, phone = doors.door.keys.create("phone", role=Role.APPROVER, owner=ME, ttl_s=0)
        async with doors.wire() as wire:
            made = (await wire.ask("CreateSession", {})).json["session_id"]
            asked = (await wire.ask("ConfirmAction", {"session_id": made, "action": "deploy"})).json["approval_id"]
            answer = {"approval_id": asked, "approved": True}
            assert (await wire.ask("ApproveAction", answer)).status == 403, "the asker, whatever its role"
            assert (await wire.ask("ApproveAction", answer, k8e_owner=ME)).status == 403
            approver = {"authorization": f"Bearer {phone}"}
            assert (await wire.ask("Exec", {"session_id": made, "command": "true"}, **approver)).status == 403
            listed = (await wire.ask("ListApprovals", {}, **approver)).json["approvals"]
            assert [each["action"] for each in listed] == ["deploy"]
            assert (await wire.ask("ApproveAction", answer, **approver)).status == 200
            heard = (await wire.ask("ConfirmAction", {"session_id": made, "approval_id": asked})).json
    assert (heard["approved"], heard["decided_by"]) == (True, "key:phone")
    decisions = [(each["identity"], each["outcome"]) for each in kept.records if each["rpc"] == "ApproveAction"]
    assert decisions == [(ME, "PERMISSION_DENIED"), (ME, "PERMISSION_DENIED"), ("key:phone", "OK")]
    assert phone not in json.dumps(kept.records)
