"""The substrate over a machine, as tests need it."""

from __future__ import annotations

from k8e.substrate.machine import Machine
from k8e.substrate.machine_substrate import MachineSubstrate
from k8e.substrate.pool import PoolSettings

__all__ = ["over"]


def over(machine: Machine, *, min: int = 0, max: int = 0) -> MachineSubstrate:
    """One for each engine. Unless told otherwise it keeps nothing warm: what is made is made for the test."""
    return MachineSubstrate(machine, PoolSettings(min=min, max=max))
