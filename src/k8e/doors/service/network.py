"""What a session may reach, what it asked for, and packages."""

from __future__ import annotations

from collections.abc import Iterable

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import fields
from k8e.doors.service.call import Call
from k8e.doors.service.encoding import LARGE_BYTES
from k8e.engine.engine import Engine
from k8e.model import Decision, Denial, SessionId

__all__ = ["NetworkRpcs", "denial_messages"]


class NetworkRpcs:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def UpdateAllowedHosts(
        self, call: Call, request: pb.UpdateAllowedHostsRequest
    ) -> pb.UpdateAllowedHostsResponse:
        view = await self._engine.update_hosts(
            call.owner,
            fields.session_id(request.session_id),
            hosts=fields.hosts(request.hosts, "hosts"),
            add=fields.hosts(request.add, "add"),
            remove=fields.hosts(request.remove, "remove"),
            asked_by=call.caller.identity,
        )
        return pb.UpdateAllowedHostsResponse(hosts=view.allowed_hosts)

    async def ListEgress(self, call: Call, request: pb.ListEgressRequest) -> None:
        session_id = fields.session_id(request.session_id)
        limit = fields.offset(request.limit, "limit")
        async for decision in self._engine.egress(call.owner, session_id, limit=limit, follow=request.follow):
            await call.write(decision_message(session_id, decision))

    async def PipInstall(self, call: Call, request: pb.PipInstallRequest) -> pb.PipInstallResponse:
        session_id = fields.session_id(request.session_id)
        packages = tuple(request.packages)
        result = await self._engine.pip_install(
            call.owner, session_id, packages, asked_by=call.caller.identity, reserve=call.reservation.grow
        )
        # What pip prints is short; where it is not, the end says what went wrong.
        output, _ = fields.text_and_bytes((result.stdout[-LARGE_BYTES:] + result.stderr[-LARGE_BYTES:])[-LARGE_BYTES:])
        return pb.PipInstallResponse(output=output, exit_code=result.outcome.exit_code)


def decision_message(session_id: SessionId, decision: Decision) -> pb.EgressDecision:
    return pb.EgressDecision(
        time=decision.at,
        session_id=session_id,
        verdict=decision.verdict,
        protocol=decision.protocol,
        name=decision.name,
        address=decision.address,
        port=decision.port,
        rule=decision.rule,
        reason=decision.reason,
        bytes_sent=decision.bytes_sent,
        bytes_received=decision.bytes_received,
        count=decision.count,
    )


def denial_messages(denied: Iterable[Denial]) -> list[pb.EgressDenial]:
    return [pb.EgressDenial(host=each.host, port=each.port, reason=each.reason) for each in denied]
