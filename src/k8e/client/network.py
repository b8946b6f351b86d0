"""Calls about a session's network: its list of hosts, what it asked for, and packages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from k8e._proto import sandbox_pb2 as pb
from k8e.client.transport import GATED_S, Transport, deadline
from k8e.client.values import EgressDecision, EgressDenial, ExecResult

__all__ = ["NetworkCalls", "denials"]

INSTALL_S = 600.0


class NetworkCalls(Transport):
    async def update_allowed_hosts(
        self,
        session_id: str,
        hosts: Sequence[str] = (),
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
    ) -> list[str]:
        """Change what a session may reach and return the new list; it is in force when this returns.

        With `add` or `remove` those entries come and go; otherwise `hosts` is the whole list, and an empty one allows
        nothing. Connections that the list no longer allows are cut.
        """
        request = pb.UpdateAllowedHostsRequest(session_id=session_id, hosts=hosts, add=add, remove=remove)
        return list((await self._call(self._stub.UpdateAllowedHosts, request, timeout_s=GATED_S)).hosts)

    async def egress(self, session_id: str, limit: int = 0, *, follow: bool = False) -> AsyncIterator[EgressDecision]:
        """What a session asked of the network and was told, oldest first; with `follow` also what comes."""
        request = pb.ListEgressRequest(session_id=session_id, limit=limit, follow=follow)
        async for each in self._streamed(self._stub.ListEgress, request):
            yield EgressDecision(
                time=each.time,
                session_id=each.session_id,
                verdict=each.verdict,
                protocol=each.protocol,
                name=each.name,
                address=each.address,
                port=each.port,
                rule=each.rule,
                reason=each.reason,
                bytes_sent=each.bytes_sent,
                bytes_received=each.bytes_received,
                count=each.count,
            )

    async def pip_install(self, session_id: str, packages: Sequence[str]) -> ExecResult:
        """Install Python packages by name into a session's environment; what pip said is in `stdout`."""
        request = pb.PipInstallRequest(session_id=session_id, packages=packages)
        answer = await self._call(self._stub.PipInstall, request, timeout_s=deadline(INSTALL_S))
        return ExecResult(
            stdout=answer.output,
            stderr="",
            exit_code=answer.exit_code,
            session_id=session_id,
            stdout_bytes=answer.output.encode(),
        )


def denials(messages: Iterable[pb.EgressDenial]) -> tuple[EgressDenial, ...]:
    return tuple(EgressDenial(host=each.host, port=each.port, reason=each.reason) for each in messages)
