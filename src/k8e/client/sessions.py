"""Calls about sessions, workspaces, and the server itself."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

from k8e._proto import sandbox_pb2 as pb
from k8e.client.errors import Unsupported
from k8e.client.secrets import add_references
from k8e.client.transport import GATED_S, PERSON_S, QUICK_S, Transport
from k8e.client.values import (
    BrokeredSecret,
    Gates,
    ImageProgress,
    Limits,
    ProcessInfo,
    RuntimeInfo,
    SecretRef,
    ServerInfo,
    SessionInfo,
    Usage,
    WorkspaceInfo,
)

__all__ = ["SessionCalls"]

CREATE_S = 300.0 + PERSON_S
"""A cold start in a long queue, and perhaps a person before it; a warm one takes milliseconds."""


class SessionCalls(Transport):
    async def create_session(
        self,
        runtime_class: str = "",
        allowed_hosts: Sequence[str] | None = None,
        tenant_id: str = "",
        *,
        session_id: str = "",
        env: Mapping[str, str] | None = None,
        image: str = "",
        user: str = "",
        limits: Limits | None = None,
        secret_refs: Sequence[SecretRef] = (),
        brokered_secrets: Sequence[BrokeredSecret] = (),
        network: str = "",
        gates: Gates | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Create a session and return its id; `gates` say where a person is asked before a call goes on, by `labels`
        `sessions` finds it again."""
        request = pb.CreateSessionRequest(
            session_id=session_id,
            tenant_id=tenant_id,
            allowed_hosts=allowed_hosts or (),
            runtime_class=runtime_class,
            env=env or {},
            image=image,
            user=user,
            network=network,
            labels=labels or {},
        )
        if limits is not None:
            request.limits.CopyFrom(limits_message(limits))
        if gates is not None:
            request.gates.CopyFrom(pb.Gates(**dataclasses.asdict(gates)))
        add_references(request, secret_refs, brokered_secrets)
        if image:
            # By itself: it may take longer than a session ever takes to be made.
            with contextlib.suppress(Unsupported):
                await self.pull_image(image, runtime_class)
        return (await self._call(self._stub.CreateSession, request, timeout_s=CREATE_S)).session_id

    async def pull_image(
        self, image: str, runtime_class: str = "", *, heard: Callable[[ImageProgress], None] | None = None
    ) -> str:
        """Get an image ready, from its registry if need be, and return its exact name; `heard` is told how far it is."""
        request = pb.PullImageRequest(image=image, runtime_class=runtime_class)
        exact = image
        async for each in self._streamed(self._stub.PullImage, request):
            exact = each.image or exact
            if heard is not None:
                heard(ImageProgress(each.phase, each.done_bytes, each.total_bytes))
        return exact

    async def destroy_session(self, session_id: str) -> None:
        """End a session and everything in it."""
        await self._call(self._stub.DestroySession, pb.DestroySessionRequest(session_id=session_id), timeout_s=QUICK_S)

    async def get(self, session_id: str) -> SessionInfo:
        """What a session is and has."""
        request = pb.GetSessionRequest(session_id=session_id)
        return session_info(await self._call(self._stub.GetSession, request, timeout_s=QUICK_S))

    async def sessions(
        self,
        phase: str = "",
        *,
        labels: Mapping[str, str | None] | None = None,
        all_owners: bool = False,
        with_usage: bool = False,
    ) -> list[SessionInfo]:
        """Your sessions: the active ones, those in `phase`, or `all`; of every owner only for administrators.

        With `labels` those that have all of these; None stands for any value.
        """
        wanted = [key if value is None else f"{key}={value}" for key, value in (labels or {}).items()]
        request = pb.ListSessionsRequest(phase=phase, labels=wanted, all_owners=all_owners, with_usage=with_usage)
        pages = self._pages(self._stub.ListSessions, request)
        return [session_info(each) async for answer in pages for each in answer.sessions]

    async def extend(
        self, session_id: str, *, ttl_s: float | None = None, idle_timeout_s: float | None = None
    ) -> SessionInfo:
        """Give a session a new lifetime, counted from now; 0 means for ever."""
        request = pb.ExtendSessionRequest(session_id=session_id, ttl_s=ttl_s, idle_timeout_s=idle_timeout_s)
        return session_info(await self._call(self._stub.ExtendSession, request, timeout_s=QUICK_S))

    async def update_labels(
        self, session_id: str, set: Mapping[str, str] | None = None, *, remove: Sequence[str] = ()
    ) -> SessionInfo:
        """Set and remove labels of a session; one that is to be removed need not be there."""
        request = pb.UpdateLabelsRequest(session_id=session_id, set=set or {}, remove=remove)
        return session_info(await self._call(self._stub.UpdateLabels, request, timeout_s=QUICK_S))

    async def subagent(self, parent_session_id: str) -> str:
        """A child session with its own sandbox that shares the parent's /workspace."""
        request = pb.RunSubAgentRequest(parent_session_id=parent_session_id)
        return (await self._call(self._stub.RunSubAgent, request, timeout_s=CREATE_S)).session_id

    async def processes(self, session_id: str) -> list[ProcessInfo]:
        """What runs in a session."""
        request = pb.GetProcessesRequest(session_id=session_id)
        answer = await self._call(self._stub.GetProcesses, request, timeout_s=QUICK_S)
        return [
            ProcessInfo(pid=each.pid, comm=each.comm, state=each.state, args=each.args) for each in answer.processes
        ]

    async def events(self, session_id: str, limit: int = 500) -> list[str]:
        """The last events of a session, each one JSON object."""
        found: list[str] = []
        async for answer in self._pages(self._stub.GetEvents, pb.GetEventsRequest(session_id=session_id, limit=limit)):
            found = [*answer.events, *found]
            if len(found) >= limit:
                break
        return found[-limit:]

    async def workspaces(self, *, all_owners: bool = False) -> list[WorkspaceInfo]:
        """The workspaces that outlive their sessions; of every owner only for administrators."""
        request = pb.ListWorkspacesRequest(all_owners=all_owners)
        answer = await self._call(self._stub.ListWorkspaces, request, timeout_s=QUICK_S)
        return [
            WorkspaceInfo(
                tenant_id=each.tenant_id, disk_bytes=each.disk_bytes, last_used=each.last_used, owner=each.owner
            )
            for each in answer.workspaces
        ]

    async def delete_workspace(self, tenant_id: str) -> None:
        """Delete a workspace and all its files."""
        request = pb.DeleteWorkspaceRequest(tenant_id=tenant_id)
        await self._call(self._stub.DeleteWorkspace, request, timeout_s=GATED_S)

    async def server_status(self) -> ServerInfo:
        """What the server is, has and does."""
        answer = await self._call(self._stub.ServerStatus, pb.ServerStatusRequest(), timeout_s=QUICK_S)
        return ServerInfo(
            pid=answer.pid,
            data_dir=answer.data_dir,
            version=answer.version,
            doors=dict(answer.doors),
            runtimes={each.name: RuntimeInfo(available=each.available, detail=each.detail) for each in answer.runtimes},
            pool=json.loads(answer.pool_json or "[]"),
            sessions=answer.sessions,
            egress=json.loads(answer.egress_json or "{}"),
            default_hosts=tuple(answer.default_hosts),
            max_mcp_chars=answer.max_mcp_chars,
        )

    async def stop_server(self, *, destroy: bool = False) -> None:
        """Stop the server; its sessions live on for the next one unless they are to be destroyed."""
        await self._call(self._stub.StopServer, pb.StopServerRequest(destroy=destroy), timeout_s=QUICK_S)


def limits_message(limits: Limits) -> pb.SessionLimits:
    names = pb.SessionLimits.DESCRIPTOR.fields_by_name
    return pb.SessionLimits(**{name: value for name in names if (value := getattr(limits, name)) is not None})


def session_info(message: pb.GetSessionResponse) -> SessionInfo:
    return SessionInfo(
        session_id=message.session_id,
        phase=message.phase,
        runtime_class=message.runtime_class,
        tenant_id=message.tenant_id,
        expires_at=message.expires_at,
        idle_at=message.idle_at,
        created_at=message.created_at,
        env_keys=tuple(message.env_keys),
        background_runs=message.background_runs,
        allowed_hosts=tuple(message.allowed_hosts),
        image=message.image,
        warm=message.warm,
        parent_session_id=message.parent_session_id,
        child_session_ids=tuple(message.child_session_ids),
        limits=Limits(**{field.name: value for field, value in message.limits.ListFields()}),
        secret_env_vars=tuple(message.secret_env_vars),
        brokered_secrets=tuple(
            BrokeredSecret(
                env_var=each.env_var, secret_name=each.secret_name, key=each.key, host=each.host, header=each.header
            )
            for each in message.brokered_secrets
        ),
        network=message.network,
        owner=message.owner,
        usage=usage(message),
        gates=gates_of(message.gates),
        labels=dict(message.labels),
    )


def gates_of(message: pb.Gates) -> Gates:
    return Gates(
        egress=message.egress,
        write_paths=tuple(message.write_paths),
        workspace=message.workspace,
        secrets=message.secrets,
        commands=tuple(message.commands),
    )


def usage(message: pb.GetSessionResponse) -> Usage | None:
    if not message.HasField("usage"):
        return None
    used = message.usage
    return Usage(cpu_s=used.cpu_s, memory_bytes=used.memory_bytes, processes=used.processes)
