"""Traces: a span per call that continues the caller's, with what happened inside of it below."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from k8e._proto import sandbox_pb2 as pb
from k8e.errors import NotFound
from k8e.model import Outcome, Runtime, Status
from k8e.telemetry.traces import Tracing
from tests.support.calls import StraightCall, as_uid

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Iterator[Tracing]:
    tracing = Tracing(SimpleSpanProcessor(exporter))
    yield tracing
    tracing.close()


def _by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name.rpartition("/")[2]: span for span in exporter.get_finished_spans()}


def _call(traceparent: str = "") -> StraightCall:
    call = as_uid(1)
    call.traceparent = traceparent
    return call


def test_a_call_is_a_span_and_what_happens_in_it_is_below(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    with tracing("Exec", _call(), pb.ExecRequest(session_id="s", command="secret")):
        tracing.claimed(Runtime.GVISOR, warm=True, took_s=0.5)
        tracing.executed(Runtime.GVISOR, Outcome(status=Status.COMPLETED, exit_code=3), took_s=0.25)
    spans = _by_name(exporter)
    top = spans["Exec"]
    assert top.attributes is not None
    assert (top.attributes["k8e.session_id"], top.attributes["rpc.response.status_code"]) == ("s", "OK")
    for name, took_s in (("claim", 0.5), ("agent exec", 0.25)):
        span = spans[name]
        assert span.parent is not None
        assert span.parent.span_id == top.context.span_id
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.end_time - span.start_time == pytest.approx(took_s * 1e9)
    assert "secret" not in str([span.to_json() for span in spans.values()])


def test_the_callers_trace_is_continued(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    with tracing("Exec", _call(TRACEPARENT), pb.ExecRequest()):
        pass
    span = _by_name(exporter)["Exec"]
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == SPAN


@pytest.mark.parametrize("bad", ["x", "00-zz-zz-01", f"00-{'0' * 32}-{SPAN}-01", "x" * 100_000, f"{TRACEPARENT}, 00-1"])
def test_a_trace_that_is_none_begins_a_new_one(tracing: Tracing, exporter: InMemorySpanExporter, bad: str) -> None:
    with tracing("Exec", _call(bad), pb.ExecRequest()):
        pass
    span = _by_name(exporter)["Exec"]
    assert span.parent is None
    assert f"{span.context.trace_id:032x}" != TRACE


@pytest.mark.parametrize(
    ("error", "code"), [(NotFound("session", "s"), "NOT_FOUND"), (asyncio.CancelledError(), "CANCELLED")]
)
def test_a_failure_is_told_by_its_code_and_passed_on(
    tracing: Tracing, exporter: InMemorySpanExporter, error: BaseException, code: str
) -> None:
    with pytest.raises(type(error)), tracing("Exec", _call(), pb.ExecRequest(session_id="s")):
        raise error
    span = _by_name(exporter)["Exec"]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, code)


def test_calls_side_by_side_do_not_mix(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    async def one(name: str, both: asyncio.Barrier) -> None:
        with tracing(name, _call(), pb.ExecRequest()):
            await both.wait()
            tracing.executed(Runtime.CONTAINER, None, took_s=0.1)
            await both.wait()

    async def main() -> None:
        both = asyncio.Barrier(2)
        async with asyncio.TaskGroup() as group:
            for name in ("Exec", "ExecStream"):
                group.create_task(one(name, both), name=name)

    asyncio.run(main())
    spans = exporter.get_finished_spans()
    tops = {span.context.span_id for span in spans if span.parent is None}
    below = {span.parent.span_id for span in spans if span.parent is not None}
    assert len(tops) == 2
    assert below == tops


def test_the_libraries_are_not_loaded_unless_asked_for(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import k8e.server, sys; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "[]\n"
