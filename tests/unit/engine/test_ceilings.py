"""Ceilings, shares and reserves as pure decisions."""

from __future__ import annotations

import dataclasses

import pytest

from k8e.engine.ceilings import (
    SETTINGS,
    Ceilings,
    Share,
    bounded,
    check_memory,
    check_share,
    clipped,
    fitted,
    share_of,
    within,
)
from k8e.errors import Exhausted, InvalidSpec
from k8e.model import GIB, MIB, Capacity, Limits

HOST = Capacity(
    cpus=2,
    memory_bytes=24 * GIB,
    processes=8192,
    disk_bytes=250 * GIB,
    free_memory_bytes=20 * GIB,
    free_disk_bytes=80 * GIB,
)
FITTED = fitted(Ceilings(), HOST)
STRICT = dataclasses.replace(
    FITTED, network_bytes_per_s=MIB, command_timeout_s=60.0, ttl_s=3600.0, idle_timeout_s=600.0
)
AT_THE_CEILING = Limits(**{name: getattr(STRICT, name) for name in SETTINGS})


def test_every_limit_has_a_ceiling_and_every_ceiling_a_setting() -> None:
    names = {field.name for field in dataclasses.fields(Limits)}
    assert names == {field.name for field in dataclasses.fields(Ceilings)} == set(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_limit_beyond_its_ceiling_is_refused_with_the_ceiling_and_the_setting(name: str) -> None:
    assert within(AT_THE_CEILING, STRICT) == AT_THE_CEILING
    more = dataclasses.replace(AT_THE_CEILING, **{name: getattr(STRICT, name) * 2 + 1})
    with pytest.raises(InvalidSpec, match=f"limits.{name}: .* is more than this server allows.*{SETTINGS[name]}"):
        within(more, STRICT)


def test_the_message_says_both_numbers_as_people_do() -> None:
    with pytest.raises(InvalidSpec, match=r"4 TiB is more than this server allows, 24 GiB"):
        within(Limits(memory_bytes=4096 * GIB), FITTED)
    with pytest.raises(InvalidSpec, match=r"4096 cpus is more than this server allows, 2 cpus"):
        within(Limits(cpus=4096), FITTED)
    with pytest.raises(InvalidSpec, match=r"ttl_s: 7200 s is more than this server allows, 3600 s.*max_ttl"):
        bounded("ttl_s", 7200, STRICT, field="ttl_s")


def test_no_limit_means_the_ceiling_where_there_is_one() -> None:
    free = Limits(ttl_s=0, idle_timeout_s=0, network_bytes_per_s=0)
    assert within(free, FITTED) == free
    held = within(free, STRICT)
    assert (held.ttl_s, held.idle_timeout_s, held.network_bytes_per_s) == (3600.0, 600.0, MIB)
    assert bounded("command_timeout_s", -1, STRICT) == 60.0


def test_what_nobody_asked_for_is_clipped_rather_than_refused() -> None:
    small = fitted(Ceilings(ttl_s=60.0), dataclasses.replace(HOST, memory_bytes=256 * MIB, disk_bytes=512 * MIB))
    held = clipped(Limits(), small)
    assert (held.memory_bytes, held.disk_bytes, held.ttl_s, held.cpus) == (256 * MIB, 512 * MIB, 60.0, 1.0)
    assert clipped(Limits(), FITTED) == Limits()


def test_sums_of_an_owner_are_the_hosts_over_committed_unless_set() -> None:
    share = share_of(Share(), HOST)
    assert (share.memory_bytes, share.disk_bytes, share.cpus) == (16 * 24 * GIB, 64 * 250 * GIB, 512)
    assert share_of(Share(memory_bytes=GIB), HOST).memory_bytes == GIB


@pytest.mark.parametrize(
    ("share", "setting"),
    [
        (Share(memory_bytes=2 * GIB), "memory_per_owner"),
        (Share(disk_bytes=10 * GIB), "disk_per_owner"),
        (Share(cpus=2.0), "cpus_per_owner"),
    ],
)
def test_one_session_too_many_for_the_share_is_refused(share: Share, setting: str) -> None:
    whole = share_of(share, HOST)
    check_share([Limits()], Limits(), whole)
    with pytest.raises(Exhausted, match=f"2 sessions already have .* destroy one.*{setting}"):
        check_share([Limits(), Limits()], Limits(), whole)


def test_workspaces_count_to_the_disk_of_their_owner() -> None:
    share = share_of(Share(disk_bytes=11 * GIB), HOST)
    check_share([Limits()], Limits(), share, workspaces_bytes=GIB)
    with pytest.raises(Exhausted, match="disk_per_owner"):
        check_share([Limits()], Limits(), share, workspaces_bytes=GIB + 1)


def test_what_is_really_in_use_counts_too() -> None:
    check_memory(HOST, None)
    short = dataclasses.replace(HOST, free_memory_bytes=500 * MIB)
    with pytest.raises(Exhausted, match=r"500 MiB of memory left and keeps 512 MiB free .reserve_memory.") as caught:
        check_memory(short, None)
    assert caught.value.retry_after_s
    check_memory(short, MIB)
    check_memory(dataclasses.replace(HOST, free_memory_bytes=0), 0)


def test_a_small_host_keeps_a_part_of_itself() -> None:
    small = dataclasses.replace(HOST, memory_bytes=GIB, free_memory_bytes=60 * MIB)
    check_memory(small, None)
    with pytest.raises(Exhausted):
        check_memory(dataclasses.replace(small, free_memory_bytes=50 * MIB), None)
