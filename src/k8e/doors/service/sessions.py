"""Sessions: create, look, list, extend, label, destroy; sub-agents; workspaces; what happened in them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import fields, secrets
from k8e.doors.service.call import Call, whose
from k8e.doors.service.paging import page
from k8e.engine import labels
from k8e.engine.engine import Engine
from k8e.engine.session import SessionView
from k8e.errors import NotFound
from k8e.model import Gates, Limits, SessionSpec, Usage

__all__ = ["SessionRpcs", "session_message", "session_spec"]

PROBE = "healthcheck-probe-noop"
"""The id that clients destroy to see whether the service is up; nobody may own it."""

EVENTS_LIMIT = 500
TRANSCRIPT_LIMIT = 64 * 1024
TRANSCRIPT_MAX = 1024 * 1024

NEVER_WHEN_ZERO = {"ttl_s", "idle_timeout_s"}
WHOLE = {
    "memory_bytes", "processes", "disk_bytes", "output_bytes", "run_output_bytes", "connections", "network_bytes_per_s",
}  # fmt: skip


class SessionRpcs:
    def __init__(self, engine: Engine, defaults: SessionSpec) -> None:
        self._engine = engine
        self._defaults = defaults

    async def CreateSession(self, call: Call, request: pb.CreateSessionRequest) -> pb.CreateSessionResponse:
        spec = session_spec(request, self._defaults)
        view = await self._engine.create_session(call.owner, spec, asked_by=call.caller.identity)
        return pb.CreateSessionResponse(session_id=view.session_id, session=session_message(view))

    async def PullImage(self, call: Call, request: pb.PullImageRequest) -> None:
        asked = session_spec(
            pb.CreateSessionRequest(image=request.image, runtime_class=request.runtime_class), self._defaults
        )
        async for progress in self._engine.pull_image(call.owner, asked):
            await call.write(
                pb.PullImageProgress(
                    phase=progress.phase,
                    done_bytes=progress.done,
                    total_bytes=progress.total,
                    image=shown(progress.image),
                )
            )

    async def GetSession(self, call: Call, request: pb.GetSessionRequest) -> pb.GetSessionResponse:
        return session_message(self._engine.get_session(call.owner, fields.session_id(request.session_id)))

    async def ListSessions(self, call: Call, request: pb.ListSessionsRequest) -> pb.ListSessionsResponse:
        phase = fields.word(request.phase, "phase", required=False) or "Active"
        owner, wanted = whose(call, request, "sessions"), labels.selector(request.labels)
        found = self._engine.list_sessions(owner, None if phase == "all" else phase, wanted)
        views = [view for view in sorted(found, key=place_in_list) if place_in_list(view) > request.page_token]
        messages = await page(views, session_message)
        more = place_in_list(views[len(messages) - 1]) if len(messages) < len(views) else b""
        if request.with_usage:
            used = await self._engine.usage([(view.owner, view.session_id) for view in views[: len(messages)]])
            for message, usage in zip(messages, used, strict=True):
                message.usage.CopyFrom(usage_message(usage))
        return pb.ListSessionsResponse(sessions=messages, next_page_token=more)

    async def DestroySession(self, call: Call, request: pb.DestroySessionRequest) -> pb.DestroySessionResponse:
        if request.session_id == PROBE:
            raise NotFound("session", PROBE)
        await self._engine.destroy_session(call.owner, fields.session_id(request.session_id))
        return pb.DestroySessionResponse(ok=True)

    async def ExtendSession(self, call: Call, request: pb.ExtendSessionRequest) -> pb.GetSessionResponse:
        view = await self._engine.extend_session(
            call.owner,
            fields.session_id(request.session_id),
            ttl_s=fields.seconds(request.ttl_s, "ttl_s") if request.HasField("ttl_s") else None,
            idle_timeout_s=fields.seconds(request.idle_timeout_s, "idle_timeout_s")
            if request.HasField("idle_timeout_s")
            else None,
        )
        return session_message(view)

    async def UpdateLabels(self, call: Call, request: pb.UpdateLabelsRequest) -> pb.GetSessionResponse:
        view = await self._engine.update_labels(
            call.owner, fields.session_id(request.session_id), set=dict(request.set), remove=tuple(request.remove)
        )
        return session_message(view)

    async def RunSubAgent(self, call: Call, request: pb.RunSubAgentRequest) -> pb.RunSubAgentResponse:
        parent = fields.session_id(request.parent_session_id, "parent_session_id")
        # Other servers take these two; here a child is like its parent.
        fields.clean(request.agent_type, "agent_type", limit=fields.WORD_CHARS)
        fields.clean(request.workspace_path, "workspace_path", limit=fields.PATH_BYTES)
        view = await self._engine.run_subagent(call.owner, parent, asked_by=call.caller.identity)
        return pb.RunSubAgentResponse(session_id=view.session_id)

    async def GetProcesses(self, call: Call, request: pb.GetProcessesRequest) -> pb.GetProcessesResponse:
        found = await self._engine.processes(call.owner, fields.session_id(request.session_id))
        listed = await page(
            found,
            lambda each: pb.ProcessInfo(pid=each.pid, comm=shown(each.comm), state=each.state, args=shown(each.args)),
        )
        return pb.GetProcessesResponse(processes=listed)

    async def GetTranscript(self, call: Call, request: pb.GetTranscriptRequest) -> pb.GetTranscriptResponse:
        limit = min(fields.offset(request.limit, "limit") or TRANSCRIPT_LIMIT, TRANSCRIPT_MAX)
        session_id = fields.session_id(request.session_id)
        part = await self._engine.transcript(call.owner, session_id, offset=fields.offset(request.offset), limit=limit)
        return pb.GetTranscriptResponse(
            session_id=session_id,
            output=shown(part.output),
            offset=part.offset,
            next_offset=part.next_offset,
            truncated_before=part.truncated_before,
            eof=part.eof,
        )

    async def GetEvents(self, call: Call, request: pb.GetEventsRequest) -> pb.GetEventsResponse:
        limit = fields.offset(request.limit, "limit") or EVENTS_LIMIT
        session_id, before = fields.session_id(request.session_id), fields.number_token(request.page_token)
        found = await self._engine.events(call.owner, session_id, limit=limit, before=before)
        return pb.GetEventsResponse(
            events=found.events,
            truncated=bool(found.before),
            returned=len(found.events),
            next_page_token=b"%d" % found.before if found.before else b"",
        )

    async def ListWorkspaces(self, call: Call, request: pb.ListWorkspacesRequest) -> pb.ListWorkspacesResponse:
        found = self._engine.list_workspaces(whose(call, request, "workspaces"))
        listed = [
            pb.Workspace(
                tenant_id=each.tenant, disk_bytes=each.disk_bytes, last_used=int(each.last_used), owner=each.owner
            )
            for each in found
        ]
        return pb.ListWorkspacesResponse(workspaces=listed)

    async def DeleteWorkspace(self, call: Call, request: pb.DeleteWorkspaceRequest) -> pb.DeleteWorkspaceResponse:
        tenant = fields.word(request.tenant_id, "tenant_id")
        await self._engine.delete_workspace(call.owner, tenant, asked_by=call.caller.identity)
        return pb.DeleteWorkspaceResponse(ok=True)


def place_in_list(view: SessionView) -> bytes:
    """What a list of sessions is sorted by, oldest first, and goes on after."""
    return b"%020.6f %s %s" % (view.created_at, view.owner.encode(), view.session_id.encode())


def session_spec(request: pb.CreateSessionRequest, defaults: SessionSpec) -> SessionSpec:
    """What the request asks for, over the server's defaults."""
    return dataclasses.replace(
        defaults,
        session_id=fields.word(request.session_id, "session_id", required=False),
        tenant=fields.word(request.tenant_id, "tenant_id", required=False),
        runtime=fields.runtime(request.runtime_class, defaults.runtime),
        image=fields.clean(request.image, "image", limit=fields.PATH_BYTES) or defaults.image,
        limits=limits_over(request.limits, defaults.limits),
        env=fields.environment(request.env),
        labels=dict(request.labels),
        secret_refs=secrets.secret_refs(request.secret_refs),
        brokered=secrets.brokered(request.brokered_secrets),
        allowed_hosts=fields.hosts(request.allowed_hosts) or defaults.allowed_hosts,
        network=fields.network(request.network, defaults.network),
        user=fields.word(request.user, "user", required=False) or defaults.user,
        gates=gates(request.gates),
    )


def gates(asked: pb.Gates) -> Gates:
    return Gates(
        egress=asked.egress,
        write_paths=tuple(
            fields.clean(path, "gates.write_paths", limit=fields.PATH_BYTES) for path in asked.write_paths
        ),
        workspace=asked.workspace,
        secrets=asked.secrets,
        commands=tuple(fields.clean(each, "gates.commands", limit=fields.PATH_BYTES) for each in asked.commands),
    )


def limits_over(asked: pb.SessionLimits, defaults: Limits) -> Limits:
    """The fields that are set, checked, over the defaults; how much of each there is, is the engine's to say."""
    given = {field.name: value for field, value in asked.ListFields()}
    checks: dict[str, Callable[[float, str], float]] = dict.fromkeys(NEVER_WHEN_ZERO, fields.seconds)
    checks["command_timeout_s"] = lambda value, name: fields.seconds(fields.positive(value, name), name)
    checks["network_bytes_per_s"] = lambda value, name: fields.offset(int(value), name)
    checked = {name: checks.get(name, fields.positive)(value, f"limits.{name}") for name, value in given.items()}
    whole = {name: int(value) for name, value in checked.items() if name in WHOLE}
    return dataclasses.replace(defaults, **(checked | whole))  # type: ignore[arg-type]  # names come from the proto


def session_message(view: SessionView) -> pb.GetSessionResponse:
    return pb.GetSessionResponse(
        session_id=view.session_id,
        phase=view.phase,
        runtime_class=view.runtime,
        tenant_id=view.tenant,
        expires_at=unix(view.expires_at),
        env_keys=[shown(key) for key in view.env_keys],
        secret_env_vars=view.secret_env_vars,
        brokered_secrets=secrets.brokered_messages(view.brokered),
        background_runs=view.background_runs,
        network=view.network,
        allowed_hosts=view.allowed_hosts,
        image=shown(view.image),
        limits=limits_message(view.limits),
        idle_at=unix(view.idle_at),
        created_at=unix(view.created_at),
        warm=view.warm,
        parent_session_id=view.parent or "",
        child_session_ids=view.children,
        owner=view.owner,
        gates=gates_message(view.gates),
        labels=view.labels,
    )


def gates_message(gates: Gates) -> pb.Gates | None:
    """Nothing where nothing is gated."""
    message = pb.Gates(
        egress=gates.egress,
        write_paths=[shown(path) for path in gates.write_paths],
        workspace=gates.workspace,
        secrets=gates.secrets,
        commands=gates.commands,
    )
    return message if message.ListFields() else None


def usage_message(usage: Usage) -> pb.SessionUsage:
    return pb.SessionUsage(cpu_s=usage.cpu_s, memory_bytes=usage.memory_bytes, processes=usage.processes)


def limits_message(limits: Limits) -> pb.SessionLimits:
    return pb.SessionLimits(**{name: getattr(limits, name) for name in pb.SessionLimits.DESCRIPTOR.fields_by_name})


def unix(seconds: float) -> int:
    """A time for the wire, where 0 means never."""
    return int(seconds) if math.isfinite(seconds) else 0


def shown(text: str) -> str:
    """Text that may hold any bytes, made fit for a proto3 string."""
    return fields.as_bytes(text).decode("utf-8", "replace")
