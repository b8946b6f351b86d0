"""Traces from the door to the agent, for operators who run a collector: a span per call, below it claims and commands.

Only imported where an endpoint is set. A caller's own trace (W3C `traceparent`) is continued.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from k8e.doors.service.call import Call
from k8e.doors.service.errors import outcome as code_of
from k8e.doors.service.naming import objects
from k8e.model import ApprovalStatus, Outcome, Runtime

__all__ = ["Tracing", "exporting"]

SERVICE: Final = "sandbox.v1.SandboxService"
_EXPORT_S: Final = 5
_FLUSH_S: Final = 3.0
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Tracing:
    """A step of the edge, and an observer of the engine: what it is told belongs to the call that is going on."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": "k8e"}), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("k8e")

    @contextmanager
    def __call__(self, name: str, call: Call, request: object) -> Iterator[None]:
        above = _PROPAGATOR.extract({"traceparent": call.traceparent}, Context()) if call.traceparent else Context()
        with self._tracer.start_as_current_span(
            f"{SERVICE}/{name}",
            above,
            kind=SpanKind.SERVER,
            attributes={"rpc.service": SERVICE, "rpc.method": name, "k8e.via": call.caller.via},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            code = "INTERNAL"
            try:
                yield
                code = "OK"
            except BaseException as error:
                code = code_of(error)
                span.set_status(Status(StatusCode.ERROR, code))
                raise
            finally:
                span.set_attribute("rpc.response.status_code", code)
                span.set_attributes({f"k8e.{key}": value for key, value in objects(request).items()})

    def claimed(self, runtime: Runtime, *, warm: bool, took_s: float) -> None:
        self._past("claim", took_s, {"k8e.runtime": runtime, "k8e.warm": warm})

    def executed(self, runtime: Runtime, outcome: Outcome | None, *, took_s: float) -> None:
        ended: dict[str, str | int | bool] = {"k8e.outcome": "abandoned"}
        if outcome is not None:
            ended = {"k8e.outcome": str(outcome.reason or outcome.status), "k8e.exit_code": outcome.exit_code}
        self._past("agent exec", took_s, {"k8e.runtime": runtime, **ended})

    def approval(self, status: ApprovalStatus) -> None:
        pass

    def close(self) -> None:
        """Send what is left, for a moment: a collector that does not answer must not hold up the end."""
        flushing = threading.Thread(target=self._provider.shutdown, name="last traces", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_S)

    def _past(self, name: str, took_s: float, attributes: dict[str, str | int | bool]) -> None:
        """A span of something that has just ended, below the call that it happened in."""
        now = time.time_ns()
        span = self._tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=attributes, start_time=now - int(took_s * 1e9)
        )
        span.end(now)


def exporting(endpoint: str) -> SpanProcessor:
    """Spans to a collector by OTLP over HTTP, on a thread of its own."""
    url = endpoint if endpoint.endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=url, timeout=_EXPORT_S), export_timeout_millis=_EXPORT_S * 1000)
