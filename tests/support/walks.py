"""Every RPC as a stranger who knows every name, and as whom the things belong to: the attack and its control."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from cryptography.hazmat.primitives.asymmetric import ec

from k8e._proto import sandbox_pb2 as pb
from tests.support.requests import request_pem
from tests.support.rpcs import Answer, Belongings, Caller, requests
from tests.support.servers_inside import ECHO, program

__all__ = ["FOR_ADMINISTRATORS", "FOR_APPROVERS", "walk_as_owner", "walk_as_stranger"]

FOR_ADMINISTRATORS = frozenset({"StopServer", "CreateApiKey", "ListApiKeys", "DeleteApiKey"})
FOR_APPROVERS = frozenset({"ListApprovals", "ApproveAction", "WhoAmI", "ServerStatus", "Login"})
UNSERVED = frozenset({
    "PauseSession", "ResumeSession", "SnapshotPut", "SnapshotGet", "SnapshotList", "ExposeService", "UnexposeService",
    "ListExposed",
})  # fmt: skip
LISTS = frozenset({"ListSessions", "ListWorkspaces", "ListSecrets", "ListApprovals"})
OF_ONES_OWN = frozenset({"CreateSession", "SetSecret", "WhoAmI", "Login", "ServerStatus"})


async def walk_as_stranger(stranger: Caller, theirs: Belongings, *, runtime: str = "") -> None:
    csr = request_pem(ec.generate_private_key(ec.SECP256R1()))
    for name, payloads in requests(theirs, csr=csr).items():
        if name == "CreateSession":
            payloads = (pb.CreateSessionRequest(tenant_id=theirs.tenant, runtime_class=runtime),)
        answer = await stranger.send(name, *payloads)
        assert answer.code == expected(name), (name, answer)
        if name == "ServeMcp":
            assert b'"isError":true' in answer.messages[0].line, answer
            assert f"session {theirs.session_id} not found".encode() in answer.messages[0].line, answer
        elif name == "CreateSession":
            await check_another_workspace(stranger, answer.messages[0].session_id)
        elif name in LISTS or name == "DeleteSecret":
            assert is_without(name, answer, theirs), (name, answer)


def expected(name: str) -> str:
    """What a stranger is answered."""
    if name in UNSERVED:
        return "UNIMPLEMENTED"
    if name in FOR_ADMINISTRATORS:
        return "PERMISSION_DENIED"
    if name in ("ServeMcp", "PullImage"):
        return "OPEN"  # a stream of one's own, in which nothing of theirs is found
    return "OK" if name in LISTS | OF_ONES_OWN or name == "DeleteSecret" else "NOT_FOUND"


async def check_another_workspace(stranger: Caller, session_id: str) -> None:
    """The same tenant's name under another owner is another workspace."""
    read = pb.ReadFileRequest(session_id=session_id, path="/workspace/mine")
    assert (await stranger.send("ReadFile", read)).code == "NOT_FOUND"
    await stranger.send("DestroySession", pb.DestroySessionRequest(session_id=session_id))
    await stranger.send("DeleteWorkspace", pb.DeleteWorkspaceRequest(tenant_id="projekt"))


def is_without(name: str, answer: Answer, theirs: Belongings) -> bool:
    """Whether nothing of theirs is there; what this walk has made itself may be."""
    (message,) = answer.messages
    match name:
        case "ListSessions":
            return all(each.session_id != theirs.session_id for each in message.sessions)
        case "ListSecrets":
            return [each.name for each in message.secrets] in ([], ["other"])
        case "ListWorkspaces":
            return len(message.workspaces) == 0
        case "ListApprovals":
            return len(message.approvals) == 0
        case _:
            return not message.ok


async def walk_as_owner(
    owner: Caller, approver: Caller, mine: Belongings, *, skipped: frozenset[str] = frozenset()
) -> None:
    """The same requests are answered when they come from whom the things belong to."""
    csr = request_pem(ec.generate_private_key(ec.SECP256R1()))
    for name, payloads in requests(mine, csr=csr).items():
        if name in skipped | UNSERVED | FOR_ADMINISTRATORS | {"CreateSession"}:
            continue
        caller = approver if name == "ApproveAction" else owner
        if name in BESIDE:
            answer = await BESIDE[name](owner, mine)
        else:
            answer = await caller.send(name, *payloads, enough=1000 if name == "ExecAttach" else 1)
        assert answer.code in {"OK", "OPEN"}, (name, answer)
        if name == "ServeMcp":
            assert b'"isError":false' in answer.messages[0].line, answer


async def watched(owner: Caller, mine: Belongings) -> Answer:
    """A watch tells of something only when something happens."""
    async with asyncio.TaskGroup() as group:
        asked = pb.WatchFilesRequest(session_id=mine.session_id)
        watching = group.create_task(owner.send("WatchFiles", asked), name="watch")
        number = 0
        while not watching.done():
            number += 1
            path = f"/workspace/news-{number}"
            await owner.send("WriteFile", pb.WriteFileRequest(session_id=mine.session_id, path=path))
        return await watching


async def attached(owner: Caller, mine: Belongings) -> Answer:
    """A command can be taken up again while it runs."""
    start = pb.ExecRequest(session_id=mine.session_id, command="echo hi; sleep 600")
    asked = pb.AttachExecRequest(session_id=mine.session_id, exec_id="exec-that-runs")
    async with asyncio.TaskGroup() as group:
        opening = pb.ExecInput(start=start, exec_id=asked.exec_id)
        running = group.create_task(owner.send("ExecAttach", opening, enough=3), name="command")
        while (answer := await owner.send("AttachExec", asked)).code == "NOT_FOUND" and not running.done():
            await asyncio.sleep(0.01)
        running.cancel()
    return answer


async def fed(owner: Caller, mine: Belongings) -> Answer:
    """A command can be given input while it runs."""
    exec_id = "exec-that-reads"
    start = pb.ExecRequest(session_id=mine.session_id, command="cat", exec_id=exec_id, with_stdin=True)
    asked = pb.WriteInputRequest(session_id=mine.session_id, exec_id=exec_id, data=b"x", eof=True)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(owner.send("Exec", start), name="command")
        while (answer := await owner.send("WriteInput", asked)).code == "NOT_FOUND" and not running.done():
            await asyncio.sleep(0.01)
        assert (await running).messages[0].stdout == "x"
    return answer


async def connected(owner: Caller, mine: Belongings) -> Answer:
    """A port can be reached while somebody listens there."""
    server = pb.ExecRequest(session_id=mine.session_id, code=program(ECHO).encode(), language="python", background=True)
    run = pb.PollRunRequest(run_id=(await owner.send("Exec", server)).messages[0].run_id)
    while not (line := (await owner.send("PollRun", run)).messages[0].stdout):
        await asyncio.sleep(0.02)
    start = pb.PortStart(session_id=mine.session_id, port=int(line))
    answer = await owner.send("OpenPort", pb.PortInput(start=start), pb.PortInput(data=b"hi"), enough=1000)
    assert [each.data for each in answer.messages if each.data] == [b"hi"], answer
    await owner.send("KillRun", pb.KillRunRequest(run_id=run.run_id))
    return answer


BESIDE: Mapping[str, Callable[[Caller, Belongings], Awaitable[Answer]]] = {
    "WatchFiles": watched,
    "AttachExec": attached,
    "WriteInput": fed,
    "OpenPort": connected,
}
"""RPCs that succeed only while something else happens."""
