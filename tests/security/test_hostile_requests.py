"""Bad input: every field of every request, wrong in every way, against the real server.

Each is refused with the field's name or is legal; none is an error of the server, and the server goes on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import Message

from k8e._proto import sandbox_pb2 as pb
from k8e.client.channels import open_channel
from tests.support.hostile import Hostile, hostile_requests
from tests.support.requests import request_pem
from tests.support.rpcs import METHODS, PATIENCE_S, SECRET, Answer, Belongings, Caller, belongings, requests
from tests.support.servers import Server

pytestmark = pytest.mark.anyio

RUNTIME = "container"
GOES_ON_S = 1.0
"""A stream that has not refused by then waits for something to happen, which is legal."""

LEGAL = {"OK", "OPEN", "NOT_FOUND", "ABORTED", "UNIMPLEMENTED"}
ENDINGS = {"ExtendSession", "TerminalDestroy", "TerminalSignal", "KillRun", "DestroySession", "UpdateAllowedHosts"}
DENIED = {"ApproveAction": {"PERMISSION_DENIED"}}
"""Whoever asked may not approve, however well it says so."""
ANYTHING = {"WriteFile.content"}
"""Text that may be any text, of any length that a message has room for."""
NEVER_SENT = {"StopServer"}


@pytest.fixture(scope="module")
async def me(server: Server) -> AsyncIterator[Caller]:
    """An administrator with a key: it may call everything, Login too."""
    async with open_channel(server.by_tls()) as channel:
        (made,) = (await Caller(channel).send("CreateApiKey", pb.CreateApiKeyRequest(name="me", role="admin"))).messages
        yield Caller(channel, made.key)
        await Caller(channel).send("DeleteApiKey", pb.DeleteApiKeyRequest(name="me"))


@asynccontextmanager
async def having(me: Caller) -> AsyncIterator[Belongings]:
    mine = await belongings(me, runtime=RUNTIME)
    try:
        yield mine
    finally:
        await me.send("DestroySession", pb.DestroySessionRequest(session_id=mine.session_id))
        await me.send("DeleteWorkspace", pb.DeleteWorkspaceRequest(tenant_id=mine.tenant))


@pytest.fixture(scope="module")
async def shared(me: Caller) -> AsyncIterator[Belongings]:
    async with having(me) as mine:
        yield mine


@pytest.fixture
async def mine(me: Caller, name: str, shared: Belongings) -> AsyncIterator[Belongings]:
    """Things of the test's own where a legal request may be the end of them."""
    if name not in ENDINGS:
        yield shared
        return
    async with having(me) as mine:
        yield mine


def good_requests(mine: Belongings) -> dict[str, tuple[Message, ...]]:
    """Of calls that would wait, the form that does not; of sessions, one with everything."""
    found = requests(mine, csr=request_pem(ec.generate_private_key(ec.SECP256R1())))
    secret = pb.SecretRef(secret_name=SECRET, key="value", env_var="PLAIN")
    brokered = pb.BrokeredSecret(secret_name=SECRET, key="value", env_var="BROKERED", host="api.example")
    asked = pb.CreateSessionRequest(runtime_class=RUNTIME, secret_refs=[secret], brokered_secrets=[brokered])
    found["CreateSession"] = (asked,)
    found["ConfirmAction"] = (pb.ConfirmActionRequest(session_id=mine.session_id, action="deploy"),)
    return found


async def sent(me: Caller, name: str, hostile: Hostile, *more: Message) -> Answer:
    """One call; a limit that says when to come back is waited for."""
    # A refusal is waited for as long as a busy machine needs; only what may be legal is told by silence.
    patience_s = PATIENCE_S if must_be_refused(name, hostile) else GOES_ON_S
    while True:
        answer = await me.send(name, hostile.data, *more, goes_on_after_s=patience_s)
        if answer.code != "RESOURCE_EXHAUSTED" or "k8e-retry-after-s" not in answer.trailing:
            return answer
        await asyncio.sleep(float(answer.trailing["k8e-retry-after-s"]))


def judged(name: str, hostile: Hostile, answer: Answer) -> str:
    """What is wrong about an answer, or nothing."""
    named = answer.text.partition(": ")[0]
    if answer.code == "INVALID_ARGUMENT":
        parts = {hostile.name, hostile.name.removesuffix("_bytes"), hostile.field}
        is_named = bool(parts & {named, named.rpartition(".")[2], named.partition("[")[0]})
        return "" if is_named or hostile.in_oneof else "does not name the field"
    if answer.code not in LEGAL | DENIED.get(name, set()):
        return "is the server's error"
    return "was taken" if must_be_refused(name, hostile) and answer.code != "UNIMPLEMENTED" else ""


def must_be_refused(name: str, hostile: Hostile) -> bool:
    """Whether no field of text may be like this, whatever it is for."""
    if hostile.is_text and hostile.kind.split(" ", 1)[-1] in {"not UTF-8", "UTF-8", "surrogate"}:
        return True
    return hostile.is_text and hostile.kind.endswith(("NUL", "huge")) and f"{name}.{hostile.field}" not in ANYTHING


async def cleaned(me: Caller, name: str, answer: Answer) -> None:
    """Take away what a legal request has made."""
    if answer.code != "OK" or name not in {"CreateSession", "RunSubAgent", "CreateTerminal", "CreateApiKey"}:
        return
    (message,) = answer.messages
    if name in {"CreateSession", "RunSubAgent"}:
        await me.send("DestroySession", pb.DestroySessionRequest(session_id=message.session_id))
        if name == "CreateSession" and message.session.tenant_id:
            await me.send("DeleteWorkspace", pb.DeleteWorkspaceRequest(tenant_id=message.session.tenant_id))
    elif name == "CreateTerminal":
        await me.send("TerminalDestroy", pb.TerminalDestroyRequest(terminal_id=message.terminal_id, grace_ms=1))
    elif name == "CreateApiKey":
        await me.send("DeleteApiKey", pb.DeleteApiKeyRequest(name=message.info.name))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(set(METHODS) - NEVER_SENT))
async def test_a_field_that_is_wrong_is_refused_by_name_and_the_server_goes_on(
    me: Caller, mine: Belongings, name: str
) -> None:
    wrong = []
    first, *more = good_requests(mine)[name]
    for hostile in hostile_requests(first):
        answer = await sent(me, name, hostile, *more)
        if complaint := judged(name, hostile, answer):
            wrong.append(f"{hostile.field} {hostile.kind}: {complaint}: {answer.code} {answer.text[:200]}")
        await cleaned(me, name, answer)
    assert not wrong, "\n".join(wrong)
    assert (await me.send("ListSessions", pb.ListSessionsRequest())).code == "OK"


@pytest.mark.parametrize("name", sorted(set(METHODS) - NEVER_SENT))
async def test_bytes_that_are_no_message_are_refused(me: Caller, name: str) -> None:
    for junk in (
        b"\x0a",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x07",
        b"\xff" * 20,
        b"\x0b" * 200,
        b"\x0a\x7f" + os.urandom(9),
    ):
        answer = await me.send(name, junk)
        assert answer.code in {"INVALID_ARGUMENT", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"}, (name, junk, answer)
