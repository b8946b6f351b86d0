"""The numbers: counted right, named for dashboards, bounded in their labels, served to this machine only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from k8e.errors import Denied, NotFound, Unauthenticated
from k8e.identity.presented import Presented
from k8e.model import ApprovalStatus, Outcome, Reason, Runtime, Status, Template
from k8e.telemetry.metrics import Metrics
from k8e.telemetry.page import serve
from tests.support.calls import as_uid

pytestmark = pytest.mark.anyio


@dataclass
class Shelf:
    ready: int = 0
    building: int = 0
    target: int = 0


@dataclass
class Network:
    allowed: int = 0
    denied: int = 0


@dataclass
class Standing:
    pool: Mapping[Template, Shelf] = field(default_factory=dict)
    live: Mapping[Runtime, int] = field(default_factory=dict)
    background_runs: int = 0
    egress: Network = field(default_factory=Network)


async def _read(metrics: Metrics, standing: Standing | None = None) -> dict[tuple[str, ...], float]:
    """(name, label values …) → value."""
    text = (await metrics.text(lambda: standing or Standing())).decode()
    return {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_claims_are_counted_warm_and_cold_with_their_time() -> None:
    metrics = Metrics()
    for warm, took_s in ((True, 0.003), (True, 0.004), (False, 0.7)):
        metrics.claimed(Runtime.GVISOR, warm=warm, took_s=took_s)
    read = await _read(metrics)
    assert read["k8e_sandbox_warm_claims_total",] == 2
    assert read["k8e_sandbox_cold_starts_total",] == 1
    assert read["k8e_sandbox_claim_seconds_count", "gvisor", "true"] == 2
    assert read["k8e_sandbox_claim_seconds_bucket", "0.002", "gvisor", "true"] == 0
    assert read["k8e_sandbox_claim_seconds_bucket", "0.005", "gvisor", "true"] == 2
    assert read["k8e_sandbox_claim_seconds_sum", "gvisor", "false"] == pytest.approx(0.7)
    assert read["k8e_sandbox_pool_hit_ratio", "gvisor"] == pytest.approx(2 / 3)


async def test_commands_are_counted_by_how_they_ended() -> None:
    metrics = Metrics()
    done = Outcome(status=Status.COMPLETED, exit_code=3)
    hog = Outcome(status=Status.FAILED, exit_code=137, reason=Reason.OOM_KILLED)
    for outcome in (done, done, hog, None):
        metrics.executed(Runtime.CONTAINER, outcome, took_s=0.02)
    read = await _read(metrics)
    told = {key[1]: value for key, value in read.items() if key[0] == "k8e_sandbox_execs_total"}
    assert told == {"completed": 2, "oom_killed": 1, "abandoned": 1}
    assert read["k8e_sandbox_exec_seconds_count", "container"] == 4


async def test_calls_are_counted_by_their_answer_also_those_refused() -> None:
    metrics = Metrics()
    with metrics("Exec", as_uid(1), None):
        pass
    for error in (NotFound("session", "s"), Denied("no"), asyncio.CancelledError()):
        with contextlib.suppress(type(error)), metrics("Exec", as_uid(1), None):
            raise error
    metrics.refused("Exec", Presented(peer=None), Unauthenticated("who"))
    read = await _read(metrics)
    told = {key[1]: value for key, value in read.items() if key[0] == "k8e_sandbox_rpcs_total"}
    assert told == dict.fromkeys(["OK", "NOT_FOUND", "PERMISSION_DENIED", "CANCELLED", "UNAUTHENTICATED"], 1)
    assert read["k8e_sandbox_rpc_seconds_count", "Exec"] == 4


async def test_what_stands_is_read_when_asked_and_summed_over_templates() -> None:
    metrics = Metrics()
    pool = {
        Template(image="host"): Shelf(ready=2, building=1, target=3),
        Template(image="/home/alice/secret-image"): Shelf(ready=1, target=1),
    }
    standing = Standing(pool=pool, live={Runtime.CONTAINER: 4}, background_runs=2, egress=Network(denied=5))
    read = await _read(metrics, standing)
    assert read["k8e_sandbox_pool_ready", "gvisor"] == 3
    assert read["k8e_sandbox_pool_target", "gvisor"] == 4
    assert (read["k8e_sandbox_sessions", "container"], read["k8e_sandbox_sessions", "gvisor"]) == (4, 0)
    assert read["k8e_sandbox_egress_denied_total",] == 5
    standing.egress.denied = 7
    assert (await _read(metrics, standing))["k8e_sandbox_egress_denied_total",] == 7
    assert b"alice" not in await metrics.text(lambda: standing)


async def test_labels_hold_nothing_that_a_caller_chose() -> None:
    metrics = Metrics()
    metrics.approval(ApprovalStatus.PENDING)
    for uid in range(100):
        with metrics("Exec", as_uid(uid), None):
            pass
    text = (await metrics.text(Standing)).decode()
    labels = {
        name for family in text_string_to_metric_families(text) for each in family.samples for name in each.labels
    }
    assert labels <= {"runtime", "warm", "outcome", "rpc", "code", "le", "status"}
    assert "uid:" not in text


async def _ask(address: str, request: bytes) -> bytes:
    host, _, port = address.removeprefix("http://").removesuffix("/metrics").rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    writer.write(request)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


async def _text() -> bytes:
    return b"k8e_up 1\n"


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9640\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.1\r\nHost: [::1]:9640\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n", b"403"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", b"403"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
        (b"garbage\r\n\r\n", b"404"),
        (b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 5000, b""),
    ],
)
async def test_the_page_is_for_this_machine_and_for_get(request_head: bytes, status: bytes) -> None:
    async with serve(_text, "127.0.0.1", 0) as address:
        assert address is not None
        try:
            answer = await _ask(address, request_head)
        except ConnectionError:
            answer = b""
        assert answer[9:12] == status
        assert (b"k8e_up 1" in answer) == (status == b"200")
        assert b"k8e_up 1" in await _ask(address, b"GET /metrics HTTP/1.1\r\n\r\n"), "it goes on"


async def test_a_port_that_is_taken_is_said_and_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with serve(_text, "127.0.0.1", 0) as first:
        assert first is not None
        port = int(first.removesuffix("/metrics").rpartition(":")[2])
        async with serve(_text, "127.0.0.1", port) as second:
            assert second is None
    assert "no metrics" in caplog.text


async def test_connections_that_say_nothing_are_bounded() -> None:
    async with serve(_text, "127.0.0.1", 0) as address:
        assert address is not None
        port = int(address.removesuffix("/metrics").rpartition(":")[2])
        silent: list[tuple[Any, Any]] = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        async with asyncio.timeout(60):
            ends = [reader for reader, _ in silent[:24]]
            assert [await _until_its_end(reader) for reader in ends] == [b""] * 24
        # The control: those that came last may still ask.
        reader, writer = silent[-1]
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"k8e_up 1" in await reader.read()
        for _, writer in silent:
            writer.close()


async def _until_its_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
