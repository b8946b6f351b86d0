"""Settings of what watches and bounds the server: what is accepted, and what is refused with a reason."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from k8e.apt.configuration import AptConfiguration
from k8e.egress.defaults import Registries
from k8e.engine.ceilings import (
    CPU_OVERCOMMIT,
    DISK_OVERCOMMIT,
    MEMORY_OVERCOMMIT,
    Ceilings,
    Share,
    check_share,
    fitted,
    share_of,
    within,
)
from k8e.engine.settings import EgressSettings, KeptLimits
from k8e.errors import InvalidSpec
from k8e.model import GIB, HostRule, Limits
from k8e.server import egress_settings, engine_settings, session_ceilings, session_defaults
from k8e.settings import OPTIONS, ServerSettings, load
from k8e.substrate.local.host import capacity


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
        ("max_cpu", "0"),
        ("max_memory", "none"),
        ("max_processes", "0"),
        ("max_output", "0"),
        ("max_ttl", "a day"),
        ("cpus_per_owner", "nan"),
        ("disk_per_owner", "-1"),
        ("kept_audit", "1Mi"),
        ("kept_audit", "much"),
        ("audit_records_per_owner", "0"),
        ("ports_per_session", "257"),
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


def test_ceilings_and_shares_are_the_operators_to_set(tmp_path: Path) -> None:
    settings = _load(tmp_path, max_cpu="500m", max_memory="2Gi", max_disk="1Ti", max_ttl="7d", max_command_timeout="90")
    assert (settings.max_cpu, settings.max_memory, settings.max_disk) == (0.5, 2 * 2**30, 2**40)
    assert (settings.max_ttl, settings.max_command_timeout) == (7 * 86400, 90)
    assert settings.max_output == 64 * 2**20


def test_the_audit_trail_has_the_size_that_the_operator_sets(tmp_path: Path) -> None:
    assert (_load(tmp_path).kept_audit, _load(tmp_path).audit_records_per_owner) == (2 * 2**30, 300)
    settings = _load(tmp_path, kept_audit="16Mi", audit_records_per_owner="20")
    assert (settings.kept_audit, settings.audit_records_per_owner) == (16 * 2**20, 20)


def test_ceilings_reach_the_engine_and_clip_its_defaults(tmp_path: Path) -> None:
    settings = _load(
        tmp_path, max_memory="256Mi", max_processes="64", max_ttl="1h", memory_per_owner="1Gi", runs_per_session="3"
    )
    most = session_ceilings(settings)
    assert (most.memory_bytes, most.processes, most.ttl_s, most.cpus) == (256 * 2**20, 64, 3600, None)
    limits = session_defaults(settings).limits
    assert (limits.memory_bytes, limits.processes, limits.ttl_s) == (256 * 2**20, 64, 3600)
    quotas = engine_settings(settings, EgressSettings()).quotas
    assert (quotas.share.memory_bytes, quotas.runs_per_session, quotas.share.cpus) == (2**30, 3, None)


@pytest.mark.parametrize(
    ("memory", "disk", "expected", "least"),
    [
        (24 * GIB, 250 * GIB, (GIB, 5 * GIB), 384),
        (2 * GIB, 20 * GIB, (GIB, 5 * GIB), 32),
        (GIB // 2, 4 * GIB, (GIB // 2, 4 * GIB), 16),
    ],
    ids=["usual", "small", "tiny"],
)
def test_defaults_fit_the_host_and_several_fit_one_owner(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    memory: int,
    disk: int,
    expected: tuple[int, int],
    least: int,
) -> None:
    host = dataclasses.replace(capacity.read(tmp_path), memory_bytes=memory, disk_bytes=disk)
    monkeypatch.setattr(capacity, "read", lambda _: host)
    settings = _load(tmp_path)
    limits = session_defaults(settings).limits
    assert (limits.memory_bytes, limits.disk_bytes) == expected
    template = engine_settings(settings, EgressSettings()).default
    assert (template.memory_bytes, template.disk_bytes) == expected  # what the pool holds is what is asked for
    assert within(limits, fitted(session_ceilings(settings), host)) == limits
    check_share([limits] * (least - 1), limits, share_of(Share(), host))


def test_apt_s_hosts_are_on_the_default_list_only_where_the_operator_allows_apt(tmp_path: Path) -> None:
    settings = load(tmp_path, flags={}, environ={})
    assert not settings.allow_apt
    assert load(tmp_path, flags={}, environ={"K8E_SANDBOX_ALLOW_APT": "true"}).allow_apt
    rule = HostRule(name="mirror.example", may_be_private=True)
    assert rule in egress_settings(settings, Registries(), AptConfiguration(hosts=(rule,))).rules
    assert egress_settings(settings, Registries()).rules == EgressSettings().rules


def test_the_page_on_limits_names_every_setting_of_them_and_no_other() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "limits.md").read_text()
    named = {flag.replace("-", "_") for flag in re.findall(r"`--([a-z-]+)`", page)}
    known = {option.name for option in OPTIONS}
    about_limits = {
        name
        for name in known
        if re.match("max_|kept_|audit_|reserve_|rate_|answers_|pull|.*_per_(owner|session)", name)
    }
    assert named == about_limits


def test_the_page_on_limits_has_the_defaults_that_hold() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "limits.md").read_text()
    limits, most, kept = Limits(), Ceilings(), KeptLimits()
    for name, default, ceiling in (
        ("memory_bytes", f"{limits.memory_bytes >> 30} GiB", "the host's"),
        ("disk_bytes", f"{limits.disk_bytes >> 30} GiB", "the size of the data directory's file system"),
        ("output_bytes", f"{limits.output_bytes >> 20} MiB", f"{most.output_bytes >> 20} MiB"),
        ("run_output_bytes", f"{limits.run_output_bytes >> 20} MiB", f"{most.run_output_bytes >> 30} GiB"),
        ("connections", str(limits.connections), str(most.connections)),
        ("processes", str(limits.processes), "a quarter of what the kernel counts"),
    ):
        assert re.search(rf"\| `{name}`[^|]*\| {default} \| {ceiling} \|", page), name
    assert f"| {kept.output_per_session >> 20} MiB | {kept.output_per_owner >> 30} GiB |" in page
    assert (
        f"| {kept.events_per_session >> 20} MiB | {kept.events_per_owner >> 20} MiB, {kept.events_age_s / 86400:.0f} days |"
        in page
    )
    settings = ServerSettings(data_dir=Path("/"))
    assert (
        f"| {settings.audit_records_per_owner} records a minute in the main one, {settings.kept_audit >> 30} GiB"
        in page
    )
    assert "16 times the host's | `--memory-per-owner`" in page
    assert "64 times the host's | `--disk-per-owner`" in page
    assert (MEMORY_OVERCOMMIT, DISK_OVERCOMMIT, CPU_OVERCOMMIT) == (16, 64, 256)
