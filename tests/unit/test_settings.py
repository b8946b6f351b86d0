"""Settings of what watches and bounds the server: what is accepted, and what is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8e.errors import InvalidSpec
from k8e.settings import ServerSettings, load


def _load(tmp_path: Path, **flags: str) -> ServerSettings:
    return load(tmp_path, flags=flags, environ={})


def test_watching_is_on_this_machine_only_and_traces_are_off(tmp_path: Path) -> None:
    settings = _load(tmp_path)
    assert settings.metrics_listen == "127.0.0.1:9640"
    assert settings.otel_endpoint == ""
    assert (settings.rate_writes, settings.rate_reads) == (1000, 5000)


@pytest.mark.parametrize(
    ("given", "taken"),
    [("off", ""), ("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:9000", "[::1]:9000"), ("localhost:1", "localhost:1")],
)
def test_the_page_of_numbers_may_be_moved_or_switched_off(tmp_path: Path, given: str, taken: str) -> None:
    assert _load(tmp_path, metrics_listen=given).metrics_listen == taken


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("metrics_listen", "0.0.0.0:9640"),
        ("metrics_listen", "192.0.2.1:9640"),
        ("metrics_listen", "example.com:80"),
        ("metrics_listen", "9640"),
        ("otel_endpoint", "127.0.0.1:4318"),
        ("otel_endpoint", "file:///etc/passwd"),
        ("otel_endpoint", "http://"),
        ("rate_writes", "-1"),
        ("rate_reads", "many"),
        ("gates", "egres"),
        ("gates", "command=("),
        ("approve_in_person", "perhaps"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, name: str, given: str) -> None:
    with pytest.raises(InvalidSpec, match=name):
        _load(tmp_path, **{name: given})


def test_rates_can_be_switched_off_and_traces_on(tmp_path: Path) -> None:
    settings = _load(tmp_path, rate_writes="0", otel_endpoint="https://collector.example:4318")
    assert (settings.rate_writes, settings.otel_endpoint) == (0, "https://collector.example:4318")


def test_gates_of_every_session_and_who_decides_are_the_operators_to_set(tmp_path: Path) -> None:
    settings = _load(tmp_path, gates="egress, write=/workspace/deploy,command=rm -rf", approve_in_person="false")
    assert settings.gates == ("egress", "write=/workspace/deploy", "command=rm -rf")
    assert not settings.approve_in_person
    assert (_load(tmp_path).gates, _load(tmp_path).approve_in_person) == ((), True)
