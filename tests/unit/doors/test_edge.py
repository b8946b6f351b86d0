"""The edge: what is done around every call, in which order, and who may call what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client.channels import open_channel
from k8e.doors.service import SERVICE
from k8e.doors.service.call import Call
from k8e.doors.service.edge import FOR_ADMINISTRATORS, FOR_APPROVERS, Edge, Step, Stream, check_role
from k8e.errors import Denied, Exhausted, K8eError
from k8e.identity import Caller, Presented, Role
from k8e.model import OwnerId
from tests.support.door import open_door

pytestmark = pytest.mark.anyio


class Seen:
    """A step that writes down what it sees."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def step(self, label: str) -> Step:
        @contextmanager
        def around(name: str, call: Call, request: object) -> Iterator[None]:
            self.rows.append(f"{label} in {name} {call.caller.identity}")
            try:
                yield
            except K8eError as error:
                self.rows.append(f"{label} out {type(error).__name__}")
                raise
            first = request.first if isinstance(request, Stream) else request
            self.rows.append(f"{label} out {type(first).__name__}")

        return around


async def test_steps_stand_around_a_call_in_their_order_and_see_how_it_ends(tmp_path: Path) -> None:
    seen = Seen()
    async with open_door(tmp_path, steps=[seen.step("a"), seen.step("b")]) as door:
        _, text = door.keys.create("k")
        async with open_channel(door.target) as channel:
            stub, as_k = SandboxStub(channel), (("authorization", f"Bearer {text}"),)
            await stub.WhoAmI(pb.WhoAmIRequest(), metadata=as_k)
            for call in (
                stub.GetSession(pb.GetSessionRequest(session_id="s"), metadata=as_k),
                stub.StopServer(pb.StopServerRequest(), metadata=as_k),
            ):
                with pytest.raises(aio.AioRpcError):
                    await call
    assert seen.rows == [
        "a in WhoAmI key:k", "b in WhoAmI key:k", "b out WhoAmIRequest", "a out WhoAmIRequest",
        "a in GetSession key:k", "b in GetSession key:k", "b out NotFound", "a out NotFound",
        "a in StopServer key:k", "b in StopServer key:k", "b out Denied", "a out Denied",
    ]  # fmt: skip


async def test_a_step_sees_the_first_message_of_a_stream(tmp_path: Path) -> None:
    seen = Seen()
    async with open_door(tmp_path, steps=[seen.step("a")]) as door, open_channel(door.target) as channel:
        stub = SandboxStub(channel)
        session_id = (await stub.CreateSession(pb.CreateSessionRequest())).session_id

        async def pieces() -> AsyncIterator[pb.WriteStreamRequest]:
            yield pb.WriteStreamRequest(open=pb.WriteStreamOpen(session_id=session_id, path="f"))
            yield pb.WriteStreamRequest(data=b"x")

        assert (await stub.WriteStream(pieces())).size == 1
    assert seen.rows[-1] == "a out WriteStreamRequest"


async def test_a_step_refuses_by_raising(tmp_path: Path) -> None:
    @contextmanager
    def full(name: str, call: Call, request: object) -> Iterator[None]:
        if name == "CreateSession":
            raise Exhausted("too many", retry_after_s=1.5)
        yield

    async with open_door(tmp_path, steps=[full]) as door, open_channel(door.target) as channel:
        stub = SandboxStub(channel)
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.CreateSession(pb.CreateSessionRequest())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ("k8e-retry-after-s", "1.500") in tuple(caught.value.trailing_metadata() or ())
        assert await door.machine.survivors() == frozenset()
        assert (await stub.WhoAmI(pb.WhoAmIRequest())).via == "loopback"


async def test_a_call_of_nobody_is_told_to_those_who_want_to_know(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    async with open_door(tmp_path) as door:
        edge = Edge(
            door.edge._service,
            door.edge._doorkeeper,
            refusals=[lambda name, presented, error: told.append((name, type(error).__name__))],
        )
        with pytest.raises(K8eError):
            edge.admit("WhoAmI", Presented(peer=None))
        with pytest.raises(K8eError):
            edge.admit("Exec", Presented(peer=None, authorization="Bearer x"))
    assert told == [("WhoAmI", "Unauthenticated"), ("Exec", "Unauthenticated")]


@pytest.mark.parametrize("role", Role)
def test_each_role_may_call_what_is_for_it(role: Role) -> None:
    caller = Caller(owner=OwnerId("o"), identity="i", role=role, via="key")
    allowed = set()
    for method in SERVICE.methods:
        try:
            check_role(method.name, caller)
        except Denied:
            continue
        allowed.add(method.name)
    every = {method.name for method in SERVICE.methods}
    assert (
        allowed
        == {
            Role.ADMIN: every,
            Role.USER: every - FOR_ADMINISTRATORS,
            Role.APPROVER: set(FOR_APPROVERS),
        }[role]
    )
    assert every >= FOR_ADMINISTRATORS | FOR_APPROVERS
