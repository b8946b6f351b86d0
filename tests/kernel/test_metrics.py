"""The numbers of a real server, as Prometheus would read them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from k8e.client import SandboxClient
from k8e.setup.provision import Provisioned
from tests.support.servers import NO_POOL, Server


@pytest.fixture
def measured(data_dir: Path, host: Provisioned) -> Iterator[Server]:
    server = Server(data_dir, *NO_POOL, "--metrics-listen", "127.0.0.1:0")
    server.start()
    yield server
    server.destroy()


def _numbers(server: Server) -> dict[tuple[str, ...], float]:
    doors = json.loads((server.data_dir / "server" / "server.json").read_text())["doors"]
    with urllib.request.urlopen(doors["metrics"], timeout=60) as page:
        text = page.read().decode()
    return {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_claims_commands_and_sessions_are_counted(measured: Server) -> None:
    with SandboxClient(target=measured.target()) as client:
        sid = client.create_session(runtime_class="container")
        assert client.exec(sid, "exit 3").exit_code == 3
        assert client.exec(sid, "sleep 60", timeout=1).exit_code == 124
        numbers = _numbers(measured)
        assert numbers["k8e_sandbox_cold_starts_total",] == 1
        assert numbers["k8e_sandbox_claim_seconds_count", "container", "false"] == 1
        assert numbers["k8e_sandbox_sessions", "container"] == 1
        assert numbers["k8e_sandbox_execs_total", "completed", "container"] == 1
        assert numbers["k8e_sandbox_execs_total", "timed_out", "container"] == 1
        assert numbers["k8e_sandbox_exec_seconds_count", "container"] == 2
        assert numbers["k8e_sandbox_rpcs_total", "OK", "Exec"] == 2
        client.destroy_session(sid)
        assert _numbers(measured)["k8e_sandbox_sessions", "container"] == 0
