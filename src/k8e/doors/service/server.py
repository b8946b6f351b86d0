"""What the server tells about itself, and how it is told to stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service.call import Call
from k8e.engine.egress import EgressCounts
from k8e.engine.engine import Engine
from k8e.engine.substrate import PoolStatus
from k8e.model import Template

__all__ = ["ServerFacts", "ServerRpcs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What the server says about itself, and how it is told to stop."""

    pid: int
    data_dir: str
    version: str
    doors: Callable[[], Mapping[str, str]]
    ca_fingerprint: str
    """SHA-256 of the authority's certificate: what a client pins at first contact."""
    stop: Callable[[bool], None]
    default_hosts: tuple[str, ...] = ()
    """What sessions that bring no list may reach."""
    max_mcp_chars: int = 0
    """The most characters of text in one answer to an MCP client; 0 does not say."""


class ServerRpcs:
    def __init__(self, engine: Engine, facts: ServerFacts) -> None:
        self._engine = engine
        self._facts = facts

    async def ServerStatus(self, call: Call, request: pb.ServerStatusRequest) -> pb.ServerStatusResponse:
        status = self._engine.status()
        runtimes = [
            pb.RuntimeStatus(name=name, available=each.available, detail=each.detail)
            for name, each in status.runtimes.items()
        ]
        return pb.ServerStatusResponse(
            pid=self._facts.pid,
            data_dir=self._facts.data_dir,
            doors=self._facts.doors(),
            runtimes=runtimes,
            pool_json=json.dumps([pool_entry(*each) for each in status.pool.items()]),
            sessions=status.sessions,
            version=self._facts.version,
            egress_json=json.dumps(egress_entry(status.egress)),
            ca_fingerprint=self._facts.ca_fingerprint,
            default_hosts=self._facts.default_hosts,
            max_mcp_chars=self._facts.max_mcp_chars,
        )

    async def StopServer(self, call: Call, request: pb.StopServerRequest) -> pb.StopServerResponse:
        self._facts.stop(request.destroy)
        return pb.StopServerResponse(ok=True)


def pool_entry(template: Template, status: PoolStatus) -> dict[str, str | int]:
    """One line of the pool for people and programs."""
    return {
        "runtime": template.runtime,
        "image": template.image,
        "memory_bytes": template.memory_bytes,
        "ready": status.ready,
        "building": status.building,
        "target": status.target,
        "warm_claims": status.warm_claims,
        "cold_claims": status.cold_claims,
    }


def egress_entry(counts: EgressCounts) -> dict[str, int]:
    """What the network decided, in numbers."""
    return {
        "allowed": counts.allowed,
        "denied": counts.denied,
        "closed": counts.closed,
        "bytes_sent": counts.bytes_sent,
        "bytes_received": counts.bytes_received,
        "unclaimed": counts.unclaimed,
    }
