"""The server's numbers, in a registry of their own.

Labels are words of ours (runtimes, RPCs, codes, outcomes), never what a caller chose: no session, no owner, no image.
What happens is counted as it happens; what stands is read when somebody asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from k8e.doors.service.call import Call
from k8e.doors.service.errors import outcome as code_of
from k8e.errors import K8eError
from k8e.identity.presented import Presented
from k8e.model import ApprovalStatus, Outcome, Runtime, Template

__all__ = ["Metrics", "Standing"]

CLAIM_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
EXEC_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0)
RPC_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 30.0)


class Shelf(Protocol):
    @property
    def ready(self) -> int: ...
    @property
    def building(self) -> int: ...
    @property
    def target(self) -> int: ...


class Network(Protocol):
    @property
    def allowed(self) -> int: ...
    @property
    def denied(self) -> int: ...


class Standing(Protocol):
    """How things stand, as the engine tells it."""

    @property
    def pool(self) -> Mapping[Template, Shelf]: ...
    @property
    def live(self) -> Mapping[Runtime, int]: ...
    @property
    def background_runs(self) -> int: ...
    @property
    def egress(self) -> Network: ...


class Metrics:
    """The engine's observer, and a step of the edge."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._warm = Counter("k8e_sandbox_warm_claims", "Sessions that got a warm sandbox", registry=registry)
        self._cold = Counter("k8e_sandbox_cold_starts", "Sessions that waited for a boot", registry=registry)
        self._claims = Histogram(
            "k8e_sandbox_claim_seconds",
            "From the request for a session to its sandbox",
            ["runtime", "warm"],
            buckets=CLAIM_BUCKETS,
            registry=registry,
        )
        self._execs = Counter(
            "k8e_sandbox_execs", "Commands by how they ended", ["runtime", "outcome"], registry=registry
        )
        self._exec_s = Histogram(
            "k8e_sandbox_exec_seconds",
            "From the start of a command to its end",
            ["runtime"],
            buckets=EXEC_BUCKETS,
            registry=registry,
        )
        self._rpcs = Counter("k8e_sandbox_rpcs", "Calls by their answer", ["rpc", "code"], registry=registry)
        self._rpc_s = Histogram(
            "k8e_sandbox_rpc_seconds", "How long calls took", ["rpc"], buckets=RPC_BUCKETS, registry=registry
        )
        self._approvals = Counter(
            "k8e_sandbox_approvals", "Questions to people, as asked and as answered", ["status"], registry=registry
        )
        self._gauges = _Gauges(registry)

    # As the engine's observer

    def claimed(self, runtime: Runtime, *, warm: bool, took_s: float) -> None:
        (self._warm if warm else self._cold).inc()
        self._claims.labels(runtime, "true" if warm else "false").observe(took_s)
        self._gauges.claimed(runtime, warm=warm)

    def executed(self, runtime: Runtime, outcome: Outcome | None, *, took_s: float) -> None:
        ended = str(outcome.reason or outcome.status) if outcome else "abandoned"
        self._execs.labels(runtime, ended).inc()
        self._exec_s.labels(runtime).observe(took_s)

    def approval(self, status: ApprovalStatus) -> None:
        self._approvals.labels(status).inc()

    # At the edge

    @contextmanager
    def __call__(self, name: str, call: Call, request: object) -> Iterator[None]:
        began = time.perf_counter()
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._rpcs.labels(name, code_of(error)).inc()
            self._rpc_s.labels(name).observe(time.perf_counter() - began)

    def refused(self, name: str, presented: Presented, error: K8eError) -> None:
        self._rpcs.labels(name, code_of(error)).inc()

    async def text(self, standing: Callable[[], Standing]) -> bytes:
        """All of it in Prometheus' text format."""
        self._gauges.read(standing())
        return await asyncio.to_thread(generate_latest, self._registry)


class _Gauges:
    """What stands: set anew each time somebody asks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"k8e_sandbox_{name}", text, labels, registry=registry)

        self._sessions = gauge("sessions", "Sessions in use", "runtime")
        self._runs = gauge("background_runs", "Background runs that are kept")
        self._ready = gauge("pool_ready", "Warm sandboxes that wait for a session", "runtime")
        self._building = gauge("pool_building", "Warm sandboxes that boot", "runtime")
        self._target = gauge("pool_target", "Warm sandboxes that there should be", "runtime")
        self._hits = gauge("pool_hit_ratio", "Share of sessions that got a warm sandbox, since the start", "runtime")
        self._decided = {
            verdict: Counter(f"k8e_sandbox_egress_{verdict}", f"Connections and look-ups {verdict}", registry=registry)
            for verdict in ("allowed", "denied")
        }
        self._told = dict.fromkeys(self._decided, 0)
        self._claims: dict[Runtime, list[int]] = {runtime: [0, 0] for runtime in Runtime}

    def claimed(self, runtime: Runtime, *, warm: bool) -> None:
        self._claims[runtime][warm] += 1

    def read(self, standing: Standing) -> None:
        for runtime in Runtime:
            shelves = [shelf for template, shelf in standing.pool.items() if template.runtime is runtime]
            self._sessions.labels(runtime).set(standing.live.get(runtime, 0))
            self._ready.labels(runtime).set(sum(shelf.ready for shelf in shelves))
            self._building.labels(runtime).set(sum(shelf.building for shelf in shelves))
            self._target.labels(runtime).set(sum(shelf.target for shelf in shelves))
            if claims := sum(self._claims[runtime]):
                self._hits.labels(runtime).set(self._claims[runtime][True] / claims)
        self._runs.set(standing.background_runs)
        for verdict, counter in self._decided.items():
            now = int(getattr(standing.egress, verdict))
            counter.inc(now - self._told[verdict])
            self._told[verdict] = now
