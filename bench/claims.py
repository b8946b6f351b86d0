"""A session from the warm pool, beside an empty call on the same server and a bare runtime's start."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.lab import RUNTIMES, Lab
from bench.rows import Row, extra, ratio
from bench.series import Probe, interleaved, timed
from bench.server import ServerUnderTest
from k8e.client import SandboxClient
from k8e.model import Runtime

__all__ = ["claims"]

_CALLS = 5.0
_STARTS = 1 / 20


def claims(lab: Lab) -> Iterator[Row]:
    for runtime in RUNTIMES:
        with lab.deployment.serving("--default-runtime", runtime) as server:
            yield from _claims(lab, server, runtime)


def _claims(lab: Lab, server: ServerUnderTest, runtime: Runtime) -> Iterator[Row]:
    bare = lab.bare[runtime]
    with bare.lives() as life:
        # Each looks for itself that the pool is full and boots nothing: what one leaves behind is not the next one's.
        seen = interleaved(
            {
                "empty": _quiet(server, timed(server.client.workspaces)),
                "claim": _quiet(server, lambda: _claim(server.client)),
                "empty by grpc": _quiet(server, timed(server.by_grpc.workspaces)),
                "claim by grpc": _quiet(server, lambda: _claim(server.by_grpc)),
                "life": _quiet(server, life),
            },
            n=lab.n,
        )
    if runtime is Runtime.GVISOR:
        note = "ListWorkspaces of an owner without any, through the SDK"
        yield extra("empty call, gRPC", seen["empty by grpc"], note=note)
        yield extra("empty call, socket", seen["empty"], note=note)
    claim, by_grpc = seen["claim"], seen["claim by grpc"]
    for way, took in (("gRPC", by_grpc), ("socket", claim)):
        name = f"warm claim, {runtime}, {way}"
        yield ratio(name, took, seen["empty by grpc"], beside="empty gRPC call", bound=_CALLS)
    # A bare container starts far more quickly than a bare gVisor sandbox; only the latter is what a claim must beat.
    bound = _STARTS if runtime is Runtime.GVISOR else None
    yield ratio(f"warm claim, {runtime}, to a start", claim, seen["life"], beside=f"{bare.name} run", bound=bound)


def _quiet(server: ServerUnderTest, probe: Probe) -> Probe:
    def waiting() -> float:
        server.settle(ready=1)
        return probe()

    return waiting


def _claim(client: SandboxClient) -> float:
    began = time.perf_counter()
    session_id = client.create_session()
    took = (time.perf_counter() - began) * 1000
    if not client.get(session_id).warm:
        raise AssertionError("the pool said that it was ready, but the session started cold")
    client.destroy_session(session_id)
    return took
