"""The gRPC door: what a session may reach, what it asked for, and packages by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client.channels import open_channel
from k8e.model import Verdict
from tests.support.decided import asking, decide, decision, denied_once
from tests.support.door import OpenDoor, open_door
from tests.support.session_python import PRINTS_ARGUMENTS

pytestmark = pytest.mark.anyio


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[OpenDoor]:
    async with open_door(tmp_path) as door:
        yield door


@pytest.fixture
async def stub(door: OpenDoor) -> AsyncIterator[SandboxStub]:
    async with open_channel(door.target) as channel:
        yield SandboxStub(channel)


async def _session(stub: SandboxStub, *hosts: str, **fields: Any) -> str:
    request = pb.CreateSessionRequest(allowed_hosts=hosts, **fields)
    return (await stub.CreateSession(request)).session_id


async def _refusal(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_a_list_is_shown_as_it_is_understood(stub: SandboxStub) -> None:
    session_id = await _session(stub, "EXAMPLE.com.", "*.bücher.example:8443", "!10.0.0.0/8")
    shown = await stub.GetSession(pb.GetSessionRequest(session_id=session_id))
    assert list(shown.allowed_hosts) == ["example.com", "*.xn--bcher-kva.example:8443", "!10.0.0.0/8"]
    assert shown.network == "list"


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [(["*.com"], "anybody can register"), (["a b"], "no label"), (["x\0y"], "NUL"), (["127.0.0.1"], "loopback")],
)
async def test_a_bad_entry_is_refused_with_its_reason(stub: SandboxStub, hosts: list[str], reason: str) -> None:
    code, text = await _refusal(stub.CreateSession(pb.CreateSessionRequest(allowed_hosts=hosts)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("allowed_hosts: ")
    assert reason in text


async def test_networks_have_names_and_the_open_one_is_not_given(stub: SandboxStub) -> None:
    code, text = await _refusal(stub.CreateSession(pb.CreateSessionRequest(network="wide")))
    assert (code, text.partition(":")[0]) == (grpc.StatusCode.INVALID_ARGUMENT, "network")
    code, text = await _refusal(stub.CreateSession(pb.CreateSessionRequest(network="open")))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    session_id = await _session(stub, network="none")
    assert (await stub.GetSession(pb.GetSessionRequest(session_id=session_id))).network == "none"


async def test_caps_are_part_of_the_limits(stub: SandboxStub) -> None:
    session_id = await _session(stub, limits=pb.SessionLimits(connections=5, network_bytes_per_s=1000))
    limits = (await stub.GetSession(pb.GetSessionRequest(session_id=session_id))).limits
    assert (limits.connections, limits.network_bytes_per_s) == (5, 1000)
    bad = pb.CreateSessionRequest(limits=pb.SessionLimits(network_bytes_per_s=-1))
    assert (await _refusal(stub.CreateSession(bad)))[1].startswith("limits.network_bytes_per_s: ")


async def test_the_list_changes_by_parts_and_as_a_whole(stub: SandboxStub) -> None:
    session_id = await _session(stub, "a.example", "b.example")

    async def update(**fields: list[str]) -> list[str]:
        request = pb.UpdateAllowedHostsRequest(session_id=session_id, **fields)
        return list((await stub.UpdateAllowedHosts(request)).hosts)

    assert await update(add=["c.example"], remove=["a.example"]) == ["b.example", "c.example"]
    assert await update(hosts=["d.example"]) == ["d.example"]
    assert await update() == []
    code, text = await _refusal(update(add=["*.co.uk"]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "anybody can register" in text


async def test_what_a_session_asked_for_is_told_and_followed(door: OpenDoor, stub: SandboxStub) -> None:
    session_id = await _session(stub)
    allowed = decision(door, session_id, Verdict.ALLOWED, address="203.0.113.9", rule="*.example")
    closed_later = replace(allowed, verdict=Verdict.CLOSED, bytes_sent=3, bytes_received=5)
    await decide(door, allowed, closed_later)

    async def told(**fields: Any) -> list[pb.EgressDecision]:
        return [each async for each in stub.ListEgress(pb.ListEgressRequest(session_id=session_id, **fields))]

    assert [each.verdict for each in await told()] == ["allowed", "closed"]
    (closed,) = await told(limit=1)
    assert (closed.session_id, closed.name, closed.address, closed.port) == (
        session_id,
        "a.example",
        "203.0.113.9",
        443,
    )
    assert (closed.rule, closed.bytes_sent, closed.bytes_received, closed.count) == ("*.example", 3, 5, 1)
    following = stub.ListEgress(pb.ListEgressRequest(session_id=session_id, limit=1, follow=True))
    assert (await anext(aiter(following))).verdict == "closed"
    await decide(door, replace(allowed, verdict=Verdict.DENIED))
    assert (await anext(aiter(following))).verdict == "denied"
    following.cancel()


async def test_another_owners_or_no_session_has_no_network(stub: SandboxStub) -> None:
    async def drained() -> None:
        async for _ in stub.ListEgress(pb.ListEgressRequest(session_id="sess-x")):
            pass

    for call in (
        drained(),
        stub.UpdateAllowedHosts(pb.UpdateAllowedHostsRequest(session_id="sess-x")),
        stub.PipInstall(pb.PipInstallRequest(session_id="sess-x", packages=["a"])),
    ):
        assert (await _refusal(call))[0] is grpc.StatusCode.NOT_FOUND


async def test_every_way_to_run_says_what_was_denied(door: OpenDoor, stub: SandboxStub, tmp_path: Path) -> None:
    session_id = await _session(stub)
    request = pb.ExecRequest(session_id=session_id, command=asking(tmp_path))

    async def outputs_of(call: AsyncIterable[pb.ExecOutput]) -> list[pb.ExecOutput]:
        return [each async for each in call]

    async with denied_once(door, session_id, tmp_path):
        (denial,) = (await stub.Exec(request)).egress_denied
    assert (denial.host, denial.port, denial.reason) == ("a.example", 443, "not on the list")

    async def start() -> AsyncIterator[pb.ExecInput]:
        yield pb.ExecInput(start=request)

    async with denied_once(door, session_id, tmp_path):
        outputs = await outputs_of(stub.ExecAttach(start()))
    assert list(outputs[-1].exit.egress_denied) == [denial]

    request.background = True
    async with denied_once(door, session_id, tmp_path):
        run_id = (await stub.Exec(request)).run_id
        outputs = await outputs_of(stub.AttachRun(pb.AttachRunRequest(run_id=run_id)))
    assert list(outputs[-1].exit.egress_denied) == [denial]
    assert list((await stub.PollRun(pb.PollRunRequest(run_id=run_id))).egress_denied) == [denial]


async def test_packages_are_installed_by_name_without_a_shell(stub: SandboxStub) -> None:
    session_id = await _session(stub)
    python = pb.ExecRequest(session_id=session_id, command=PRINTS_ARGUMENTS)
    assert (await stub.Exec(python)).exit_code == 0
    request = pb.PipInstallRequest(session_id=session_id, packages=["six>=1.0,<2", "requests[socks]"])
    answer = await stub.PipInstall(request)
    assert answer.output.split("\n")[-4:] == ["--", "six>=1.0,<2", "requests[socks]", ""]
    assert answer.exit_code == 0
    for hostile in ("--index-url=http://evil.example", "a; touch b", "../a", "a @ http://evil.example/a.whl", "$(id)"):
        request = pb.PipInstallRequest(session_id=session_id, packages=[hostile])
        assert (await _refusal(stub.PipInstall(request)))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_servers_status_counts_decisions(door: OpenDoor, stub: SandboxStub) -> None:
    denied = decision(door, await _session(stub), Verdict.DENIED)
    await decide(door, denied, denied)
    status = await stub.ServerStatus(pb.ServerStatusRequest())
    assert json.loads(status.egress_json)["denied"] == 2
