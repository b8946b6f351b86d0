"""Ceilings: the most that one session may ask for, what one owner's sessions may have together, what stays free.

Limits are not reservations: most sessions use a fraction of theirs. So the sums may exceed the host by a stated
factor, and what is really in use is looked at besides, whenever a session is made. Everything here is pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from k8e.errors import Exhausted, InvalidSpec
from k8e.model import GIB, MIB, Capacity, Limits

__all__ = [
    "Ceilings",
    "Share",
    "bounded",
    "check_memory",
    "check_share",
    "clipped",
    "fitted",
    "share_of",
    "within",
]

MEMORY_OVERCOMMIT: Final = 16
DISK_OVERCOMMIT: Final = 64
"""Disks grow only into room that is there, and most of them hardly do."""
CPU_OVERCOMMIT: Final = 256
"""Processor time is shared by the scheduler, so a sum of CPUs says little; it only bounds how many compete."""
RESERVED_MEMORY: Final = 512 * MIB
RESERVED_PART: Final = 20
"""On a small host the reserve is this part of it, where that is less."""
AGAIN_S: Final = 5.0
ROUNDING: Final = 1e-6
"""Three tenths are a little more than 0.3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The most of each limit that a session may ask for. None is what the host has; 0 is no ceiling."""

    cpus: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    output_bytes: int = 64 * MIB
    run_output_bytes: int = GIB
    connections: int = 4096
    network_bytes_per_s: int = 0
    command_timeout_s: float = 0.0
    ttl_s: float = 0.0
    idle_timeout_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the sessions of one owner may have together. None is the host's, over-committed."""

    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    """Of sessions and of workspaces that outlive them."""


SETTINGS: Final = {
    "cpus": "max_cpu",
    "memory_bytes": "max_memory",
    "processes": "max_processes",
    "disk_bytes": "max_disk",
    "output_bytes": "max_output",
    "run_output_bytes": "max_run_output",
    "connections": "max_connections",
    "network_bytes_per_s": "max_network_rate",
    "command_timeout_s": "max_command_timeout",
    "ttl_s": "max_ttl",
    "idle_timeout_s": "max_idle",
}
"""What the operator calls each ceiling."""

ZERO_IS_NO_LIMIT: Final = frozenset({"network_bytes_per_s", "command_timeout_s", "ttl_s", "idle_timeout_s"})


def fitted(ceilings: Ceilings, capacity: Capacity) -> Ceilings:
    """The ceilings with what the operator left open taken from the host."""
    return dataclasses.replace(
        ceilings,
        cpus=capacity.cpus if ceilings.cpus is None else ceilings.cpus,
        memory_bytes=capacity.memory_bytes if ceilings.memory_bytes is None else ceilings.memory_bytes,
        processes=capacity.processes if ceilings.processes is None else ceilings.processes,
        disk_bytes=capacity.disk_bytes if ceilings.disk_bytes is None else ceilings.disk_bytes,
    )


def share_of(share: Share, capacity: Capacity) -> Share:
    """The share with what the operator left open taken from the host."""
    return Share(
        cpus=capacity.cpus * CPU_OVERCOMMIT if share.cpus is None else share.cpus,
        memory_bytes=capacity.memory_bytes * MEMORY_OVERCOMMIT if share.memory_bytes is None else share.memory_bytes,
        disk_bytes=capacity.disk_bytes * DISK_OVERCOMMIT if share.disk_bytes is None else share.disk_bytes,
    )


def within(limits: Limits, ceilings: Ceilings) -> Limits:
    """The limits as they will hold. Raises: InvalidSpec beyond a ceiling."""
    held = {name: bounded(name, getattr(limits, name), ceilings) for name in SETTINGS}
    return dataclasses.replace(limits, **held)  # type: ignore[arg-type]  # names of Limits, each with its own type


def bounded(name: str, asked: float, ceilings: Ceilings, *, field: str = "") -> float:
    """One limit as it will hold: where zero means none, the ceiling takes its place. Raises: InvalidSpec beyond it."""
    most: float = getattr(ceilings, name)
    if not most:
        return asked
    if asked <= 0 and name in ZERO_IS_NO_LIMIT:
        return most
    if asked > most:
        raise InvalidSpec(
            f"{shown(asked, name)} is more than this server allows, {shown(most, name)}: ask for that or less, or "
            f"have its operator raise {SETTINGS[name]}",
            field=field or f"limits.{name}",
        )
    return asked


def clipped(limits: Limits, ceilings: Ceilings) -> Limits:
    """Limits that nobody asked for, no higher than the ceilings."""
    held = {
        name: most for name in SETTINGS if (most := getattr(ceilings, name)) and not 0 < getattr(limits, name) <= most
    }
    return dataclasses.replace(limits, **held)


def check_share(held: Iterable[Limits], asked: Limits, share: Share, *, workspaces_bytes: int = 0) -> None:
    """Whether one more session fits an owner's share. Raises: Exhausted with what is held and what may be."""
    limits = list(held)
    for name, setting, base in (
        ("cpus", "cpus_per_owner", 0),
        ("memory_bytes", "memory_per_owner", 0),
        ("disk_bytes", "disk_per_owner", workspaces_bytes),
    ):
        most = getattr(share, name)
        have = base + sum(getattr(each, name) for each in limits)
        if most and have + getattr(asked, name) > most + ROUNDING:
            raise Exhausted(
                f"your {len(limits)} sessions already have {shown(have, name)} and may have {shown(most, name)} "
                f"together, which leaves too little for {shown(getattr(asked, name), name)}: destroy one, ask for "
                f"less, or have the server's operator raise {setting}"
            )


def check_memory(capacity: Capacity, reserve: int | None) -> None:
    """Whether the host has enough left for one more. Of its disk the substrate knows. Raises: Exhausted."""
    kept = min(RESERVED_MEMORY, capacity.memory_bytes // RESERVED_PART) if reserve is None else reserve
    free = capacity.free_memory_bytes
    if free < kept:
        raise Exhausted(
            f"the host has {shown(free, 'bytes')} of memory left and keeps {shown(kept, 'bytes')} free "
            "(reserve_memory): end sessions that are not needed, or retry later",
            retry_after_s=AGAIN_S,
        )


def shown(value: float, name: str) -> str:
    """A number as people say it."""
    if name.endswith(("bytes", "per_s")):
        unit, divisor = next(
            ((unit, size) for unit, size in (("TiB", GIB * 1024), ("GiB", GIB), ("MiB", MIB)) if value >= size),
            ("bytes", 1),
        )
        number = f"{value / divisor:.1f}".removesuffix(".0") if divisor > 1 else f"{value:.0f}"
        return f"{number} {unit}{'/s' if name.endswith('per_s') else ''}"
    text = f"{value:g}" if value < 1e6 else f"{value:.0f}"
    return f"{text} s" if name.endswith("_s") else f"{text} {name}"
