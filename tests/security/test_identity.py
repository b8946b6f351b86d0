"""Identity: nobody reaches what belongs to another owner, and no credential is good for more than it says.

Attacked: every RPC with a foreign identity that knows every name; keys that are stolen in part, deleted or expired;
certificates that are revoked, expired, foreign or self-made; the header that only administrators may send.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from k8e._proto import sandbox_pb2 as pb
from k8e.client.channels import open_channel
from k8e.client.discovery import Target
from k8e.identity import Authority, Role
from tests.support.door import OpenDoor, open_door
from tests.support.requests import PrivateKey, key_pem, request_pem
from tests.support.rpcs import METHODS, Belongings, Caller, belongings, requests
from tests.support.walks import FOR_APPROVERS, walk_as_owner, walk_as_stranger

pytestmark = pytest.mark.anyio


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[OpenDoor]:
    async with open_door(tmp_path) as door:
        yield door


@asynccontextmanager
async def as_key(door: OpenDoor, name: str, *, role: Role = Role.USER, owner: str = "") -> AsyncIterator[Caller]:
    _, text = door.keys.create(name, role=role, owner=owner)
    async with open_channel(door.target) as channel:
        yield Caller(channel, text)


async def test_a_foreign_key_finds_nothing_through_any_rpc(door: OpenDoor) -> None:
    async with (
        as_key(door, "alice") as alice,
        as_key(door, "mallory") as mallory,
        as_key(door, "judge", role=Role.APPROVER, owner="key:alice") as judge,
    ):
        theirs = await belongings(alice)
        await walk_as_stranger(mallory, theirs)
        await walk_as_owner(alice, judge, theirs)


async def test_the_same_tenant_under_another_owner_is_another_workspace(door: OpenDoor) -> None:
    """A label grants nothing."""
    async with as_key(door, "alice") as alice, as_key(door, "mallory") as mallory:
        mine = await belongings(alice)
        asked = pb.CreateSessionRequest(tenant_id=mine.tenant)
        (made,) = (await mallory.send("CreateSession", asked)).messages
        read = pb.ReadFileRequest(session_id=made.session_id, path="/workspace/mine")
        assert (await mallory.send("ReadFile", read)).code == "NOT_FOUND"
        (own,) = (await alice.send("ReadFile", pb.ReadFileRequest(session_id=mine.session_id, path="mine"))).messages
        assert own.content == "mine"


async def test_another_key_of_the_same_owner_is_let_in(door: OpenDoor) -> None:
    """The control of the walk: it is the owner that counts, not the key."""
    async with as_key(door, "alice") as alice, as_key(door, "alices-phone", owner="key:alice") as phone:
        mine = await belongings(alice)
        assert (await phone.send("GetSession", pb.GetSessionRequest(session_id=mine.session_id))).code == "OK"


async def test_an_approver_may_only_see_and_decide(door: OpenDoor) -> None:
    async with as_key(door, "alice") as alice, as_key(door, "judge", role=Role.APPROVER, owner="key:alice") as judge:
        mine = await belongings(alice)
        for name, payloads in requests(mine).items():
            if name not in FOR_APPROVERS:
                answer = await judge.send(name, *payloads)
                assert answer.code == "PERMISSION_DENIED", (name, answer)
        (seen,) = (await judge.send("ListApprovals", pb.ListApprovalsRequest())).messages
        assert [each.action for each in seen.approvals] == ["deploy"]
        asked = pb.ApproveActionRequest(approval_id=mine.approval_id, approved=True)
        assert (await alice.send("ApproveAction", asked)).code == "PERMISSION_DENIED"
        assert (await judge.send("ApproveAction", asked)).code == "OK"


async def test_only_an_administrator_speaks_for_another_owner(door: OpenDoor) -> None:
    async with (
        as_key(door, "alice") as alice,
        as_key(door, "mallory") as mallory,
        as_key(door, "chief", role=Role.ADMIN) as chief,
    ):
        mine = await belongings(alice)
        asked = pb.GetSessionRequest(session_id=mine.session_id)
        assert (await chief.send("GetSession", asked)).code == "NOT_FOUND"
        for_alice = dataclasses.replace(chief, owner="key:alice")
        assert (await for_alice.send("GetSession", asked)).code == "OK"
        (told,) = (await for_alice.send("WhoAmI", pb.WhoAmIRequest())).messages
        assert (told.owner, told.identity, told.role) == ("key:alice", "key:chief", "admin")
        for name in METHODS:
            pushy = dataclasses.replace(mallory, owner="key:alice")
            answer = await pushy.send(name, *requests(mine)[name])
            assert answer.code == "PERMISSION_DENIED", (name, answer)


async def test_every_rpc_refuses_a_credential_that_is_not_good(door: OpenDoor) -> None:
    """Wrong, cut, deleted, expired: refused before anything happens, and never taken for the uid behind it."""
    async with open_channel(door.target) as channel:
        kept, text = door.keys.create("kept")
        _, deleted = door.keys.create("deleted")
        _, short = door.keys.create("short", ttl_s=60)
        assert [(await Caller(channel, each).send("WhoAmI", pb.WhoAmIRequest())).code for each in (deleted, short)] == [
            "OK", "OK",
        ]  # fmt: skip
        door.keys.delete("deleted")
        door.clock.ahead_s = 61
        nothing = Belongings(session_id="s", run_id="r", terminal_id="t", approval_id="a")
        for bad in (deleted, short, text[:-1], kept.key_id, kept.digest, "0" * 64, "x"):
            for name, payloads in requests(nothing).items():
                answer = await Caller(channel, bad).send(name, *payloads)
                assert answer.code == "UNAUTHENTICATED", (name, bad, answer)
        assert (await Caller(channel, text).send("WhoAmI", pb.WhoAmIRequest())).code == "OK"
        assert await door.machine.survivors() == frozenset()


async def test_nobody_is_served_without_any_credential_where_the_uid_does_not_count(tmp_path: Path) -> None:
    nothing = Belongings(session_id="s", run_id="r", terminal_id="t", approval_id="a")
    async with open_door(tmp_path, loopback=False) as door, open_channel(door.target) as channel:
        for name, payloads in requests(nothing).items():
            assert (await Caller(channel).send(name, *payloads)).code == "UNAUTHENTICATED", name
        _, text = door.keys.create("k")
        assert (await Caller(channel, text).send("WhoAmI", pb.WhoAmIRequest())).code == "OK"


def presenting(target: Target, private: PrivateKey, certificate: x509.Certificate | str) -> Target:
    pem = certificate if isinstance(certificate, str) else certificate.public_bytes(Encoding.PEM).decode()
    return dataclasses.replace(target, key=key_pem(private), certificate=pem.encode())


async def who(target: Target) -> str:
    async with open_channel(target) as channel:
        answer = await Caller(channel).send("WhoAmI", pb.WhoAmIRequest())
        return str(answer.messages[0].identity) if answer.code == "OK" else answer.code


async def test_certificates_that_nobody_here_issued_or_that_have_ended_are_worthless(
    door: OpenDoor, tmp_path: Path
) -> None:
    private, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    ours = Authority.open(tmp_path / "server" / "tls", now=now)
    foreign = Authority.open(tmp_path / "foreign", now=now)
    past = now - datetime.timedelta(days=2)
    door.keys.create("laptop")
    tried = {
        "of another CA": foreign.sign_client(private.public_key(), common_name="laptop", now=now, days=1),
        "expired": ours.sign_client(private.public_key(), common_name="laptop", now=past, days=1),
        "for servers": ours.sign_server(private.public_key(), names=[], now=now, days=1),
        "not in the ledger": ours.sign_client(private.public_key(), common_name="laptop", now=now, days=1),
    }
    for kind, certificate in tried.items():
        assert await who(presenting(door.target, private, certificate)) in {"UNAVAILABLE", "UNAUTHENTICATED"}, kind
    _, text = door.keys.create("phone")
    async with open_channel(door.target) as channel:
        asked = pb.LoginRequest(csr=request_pem(private))
        (answer,) = (await Caller(channel, text).send("Login", asked)).messages
    good = presenting(door.target, private, answer.cert)
    assert await who(good) == "key:phone"
    door.clock.ahead_s = 91 * 86400
    assert await who(good) == "UNAUTHENTICATED"
    # A key beside a certificate that has ended is a credential of its own.
    async with open_channel(good) as channel:
        assert (await Caller(channel, text).send("WhoAmI", pb.WhoAmIRequest())).code == "OK"
