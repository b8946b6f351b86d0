"""Every RPC of the service as raw bytes: one good request of each, and a caller that hides nothing.

`requests` must name every RPC of the descriptor, so that a new one cannot be forgotten by the tests that walk them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import SERVICE

__all__ = ["METHODS", "PATIENCE_S", "SECRET", "Answer", "Belongings", "Caller", "belongings", "requests"]

METHODS = {method.name: method for method in SERVICE.methods}
PATIENCE_S = 60.0
SECRET = "vault"
EXEC_ID = "exec-of-alice"
WRITTEN_TOO_LATE = "Internal error from Core"
"""What grpc's own client makes of a refusal that comes while it still writes: the refusal itself is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a call ended: OK, a code, or OPEN for a stream that goes on; and what came before."""

    code: str
    text: str
    messages: tuple[Any, ...] = ()
    trailing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Caller:
    """One identity on one channel."""

    channel: aio.Channel
    key: str = ""
    owner: str = ""

    async def send(
        self, name: str, *payloads: Message | bytes, enough: int = 1, goes_on_after_s: float = PATIENCE_S
    ) -> Answer:
        """The first `enough` answers of one call, or its end; a stream that is silent for so long goes on."""
        while True:
            answer = await self._sent(name, *payloads, enough=enough, goes_on_after_s=goes_on_after_s)
            if answer.text != WRITTEN_TOO_LATE or answer.messages:
                return answer

    async def _sent(self, name: str, *payloads: Message | bytes, enough: int, goes_on_after_s: float) -> Answer:
        method, got = METHODS[name], list[Any]()
        call = self._begin(name, [each if isinstance(each, bytes) else each.SerializeToString() for each in payloads])
        try:
            async with asyncio.timeout(goes_on_after_s if method.server_streaming else PATIENCE_S):
                if method.server_streaming:
                    async for data in call:
                        got.append(data)
                        if len(got) >= enough:
                            return self._answer(name, "OPEN", "", got, {})
                else:
                    got.append(await call)
                trailing = {str(key): str(value) for key, value in await call.trailing_metadata() or ()}
        except aio.AioRpcError as error:
            told = {str(key): str(value) for key, value in error.trailing_metadata() or ()}
            return self._answer(name, error.code().name, error.details() or "", got, told)
        except TimeoutError:
            return self._answer(name, "OPEN", "", got, {})
        finally:
            call.cancel()
        return self._answer(name, "OK", "", got, trailing)

    def _begin(self, name: str, payloads: Sequence[bytes]) -> Any:
        method = METHODS[name]
        sides = tuple("stream" if side else "unary" for side in (method.client_streaming, method.server_streaming))
        make = getattr(self.channel, f"{sides[0]}_{sides[1]}")
        sent = [("authorization", f"Bearer {self.key}")] if self.key else []
        sent += [("k8e-owner", self.owner)] if self.owner else []
        request: object = payloads[0] if not method.client_streaming else _each(payloads)
        return make(f"/{SERVICE.full_name}/{name}")(request, metadata=tuple(sent), timeout=PATIENCE_S)

    def _answer(self, name: str, code: str, text: str, got: list[bytes], trailing: Mapping[str, str]) -> Answer:
        kind = GetMessageClass(METHODS[name].output_type)
        return Answer(code=code, text=text, messages=tuple(map(kind.FromString, got)), trailing=trailing)


async def _each(payloads: Sequence[bytes]) -> AsyncIterator[bytes]:
    for each in payloads:
        yield each


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """What one owner has, by name."""

    session_id: str
    run_id: str
    terminal_id: str
    approval_id: str
    tenant: str = "projekt"


async def belongings(caller: Caller, *, runtime: str = "") -> Belongings:
    """One of everything."""

    async def ask(name: str, request: Message) -> Any:
        answer = await caller.send(name, request)
        assert answer.code in {"OK", "OPEN"}, (name, answer)
        return answer.messages[0]

    created = await ask("CreateSession", pb.CreateSessionRequest(tenant_id="projekt", runtime_class=runtime))
    sid = created.session_id
    await ask("WriteFile", pb.WriteFileRequest(session_id=sid, path="/workspace/mine", content="mine"))
    await ask("SetSecret", pb.SetSecretRequest(name=SECRET, key="value", value=b"s3cret-value"))
    run = await ask("Exec", pb.ExecRequest(session_id=sid, command="echo hi; sleep 600", background=True))
    argv = ["/bin/sh", "-c", "echo hi; exec cat"]
    terminal = await ask("CreateTerminal", pb.CreateTerminalRequest(session_id=sid, argv=argv))
    approval = await ask("ConfirmAction", pb.ConfirmActionRequest(session_id=sid, action="deploy"))
    return Belongings(
        session_id=sid, run_id=run.run_id, terminal_id=terminal.terminal_id, approval_id=approval.approval_id
    )


def reading(session_id: str, path: str) -> bytes:
    """One line of MCP, of the revision that needs no other before it: a file is read."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    arguments = {"session_id": session_id, "path": path}
    params = {"name": "sandbox_read_file", "arguments": arguments, "_meta": meta}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def requests(b: Belongings, *, csr: str = "") -> dict[str, tuple[Message, ...]]:
    """One good request of each RPC about these things, gentle ones first."""
    sid, path = b.session_id, "/workspace/mine"
    run = pb.ExecRequest(session_id=sid, command="echo hi")
    opening = pb.WriteStreamRequest(open=pb.WriteStreamOpen(session_id=sid, path="/workspace/streamed"))
    found: dict[str, tuple[Message, ...]] = {
        "CreateSession": (pb.CreateSessionRequest(tenant_id=b.tenant),),
        "GetSession": (pb.GetSessionRequest(session_id=sid),),
        "ListSessions": (pb.ListSessionsRequest(phase="all"),),
        "ExtendSession": (pb.ExtendSessionRequest(session_id=sid, ttl_s=3600),),
        "UpdateLabels": (pb.UpdateLabelsRequest(session_id=sid, set={"team": "blue"}, remove=["old"]),),
        "RunSubAgent": (pb.RunSubAgentRequest(parent_session_id=sid),),
        "Exec": (run,),
        "ExecStream": (run,),
        "ExecAttach": (pb.ExecInput(start=run, exec_id=EXEC_ID),),
        "AttachExec": (pb.AttachExecRequest(session_id=sid, exec_id=EXEC_ID),),
        "WriteInput": (pb.WriteInputRequest(session_id=sid, exec_id=EXEC_ID, data=b"x"),),
        "ListExecs": (pb.ListExecsRequest(session_id=sid),),
        "SignalExec": (pb.SignalExecRequest(session_id=sid, exec_id=EXEC_ID, signal=28),),
        "PipInstall": (pb.PipInstallRequest(session_id=sid, packages=["no-such-package-of-k8e"]),),
        "PollRun": (pb.PollRunRequest(run_id=b.run_id),),
        "AttachRun": (pb.AttachRunRequest(run_id=b.run_id),),
        "ListRuns": (pb.ListRunsRequest(session_id=sid),),
        "GetProcesses": (pb.GetProcessesRequest(session_id=sid),),
        "WriteFile": (pb.WriteFileRequest(session_id=sid, path="/workspace/written", content="x"),),
        "ReadFile": (pb.ReadFileRequest(session_id=sid, path=path),),
        "ListFiles": (pb.ListFilesRequest(session_id=sid),),
        "ReadStream": (pb.ReadStreamRequest(session_id=sid, path=path),),
        "WriteStream": (opening, pb.WriteStreamRequest(data=b"x")),
        "ServeMcp": (pb.McpInput(start=pb.McpStart(client_id="agent-of-alice")), pb.McpInput(line=reading(sid, path))),
        "StatFile": (pb.StatFileRequest(session_id=sid, path=path),),
        "ListDirectory": (pb.ListDirectoryRequest(session_id=sid),),
        "MakeDirectory": (pb.MakeDirectoryRequest(session_id=sid, path="/workspace/made"),),
        "WatchFiles": (pb.WatchFilesRequest(session_id=sid),),
        "MoveFile": (pb.MoveFileRequest(session_id=sid, source=path, target="/workspace/moved"),),
        "RemoveFile": (pb.RemoveFileRequest(session_id=sid, path="/workspace/moved"),),
        "GetTranscript": (pb.GetTranscriptRequest(session_id=sid),),
        "GetEvents": (pb.GetEventsRequest(session_id=sid),),
        "CreateTerminal": (pb.CreateTerminalRequest(session_id=sid, argv=["/bin/true"]),),
        "TerminalStream": (pb.TerminalStreamRequest(terminal_id=b.terminal_id),),
        "TerminalWrite": (pb.TerminalWriteRequest(terminal_id=b.terminal_id, data=b"x"),),
        "TerminalResize": (pb.TerminalResizeRequest(terminal_id=b.terminal_id, rows=10, cols=10),),
        "TerminalForeground": (pb.TerminalForegroundRequest(terminal_id=b.terminal_id),),
        "TerminalSignal": (pb.TerminalSignalRequest(terminal_id=b.terminal_id, signal=pb.TERMINAL_SIGNAL_INT),),
        "TerminalDestroy": (pb.TerminalDestroyRequest(terminal_id=b.terminal_id, grace_ms=1),),
        "UpdateAllowedHosts": (pb.UpdateAllowedHostsRequest(session_id=sid, hosts=["a.example"]),),
        "PullImage": (pb.PullImageRequest(image="host"),),
        "OpenPort": (pb.PortInput(start=pb.PortStart(session_id=sid, port=9)),),
        "ListEgress": (pb.ListEgressRequest(session_id=sid),),
        "ListApprovals": (pb.ListApprovalsRequest(all=True),),
        "ApproveAction": (pb.ApproveActionRequest(approval_id=b.approval_id, approved=True),),
        "ConfirmAction": (pb.ConfirmActionRequest(session_id=sid, action="deploy", approval_id=b.approval_id),),
        "SetSecret": (pb.SetSecretRequest(name="other", key="value", value=b"v"),),
        "ListSecrets": (pb.ListSecretsRequest(),),
        "DeleteSecret": (pb.DeleteSecretRequest(name=SECRET),),
        "ListWorkspaces": (pb.ListWorkspacesRequest(),),
        "KillRun": (pb.KillRunRequest(run_id=b.run_id),),
        "WhoAmI": (pb.WhoAmIRequest(),),
        "Login": (pb.LoginRequest(csr=csr, device_name="laptop", client_version="1"),),
        "ServerStatus": (pb.ServerStatusRequest(),),
        "CreateApiKey": (pb.CreateApiKeyRequest(name="another"),),
        "ListApiKeys": (pb.ListApiKeysRequest(),),
        "DeleteApiKey": (pb.DeleteApiKeyRequest(name="another"),),
        "PauseSession": (pb.PauseSessionRequest(session_id=sid),),
        "ResumeSession": (pb.ResumeSessionRequest(session_id=sid),),
        "SnapshotPut": (pb.SnapshotPutRequest(name="s"),),
        "SnapshotGet": (pb.SnapshotGetRequest(name="s"),),
        "SnapshotList": (pb.SnapshotListRequest(),),
        "ExposeService": (pb.ExposeServiceRequest(session_id=sid, port=80),),
        "UnexposeService": (pb.UnexposeServiceRequest(session_id=sid, port=80),),
        "ListExposed": (pb.ListExposedRequest(session_id=sid),),
        "DestroySession": (pb.DestroySessionRequest(session_id=sid),),
        "DeleteWorkspace": (pb.DeleteWorkspaceRequest(tenant_id=b.tenant),),
        "StopServer": (pb.StopServerRequest(),),
    }
    assert set(found) == set(METHODS), set(found) ^ set(METHODS)
    return found
