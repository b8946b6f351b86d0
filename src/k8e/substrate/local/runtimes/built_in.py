"""The drivers that this version has, and what is said of the runtimes that have none."""

from __future__ import annotations

from typing import Final

from k8e.model import Runtime
from k8e.substrate.local.disks import Disks
from k8e.substrate.local.idmaps import IdMaps
from k8e.substrate.local.runtimes.container import Container
from k8e.substrate.local.runtimes.driver import Driver
from k8e.substrate.local.runtimes.gvisor import Gvisor
from k8e.substrate.local.settings import LocalSettings

__all__ = ["RUNTIMES", "drivers", "not_built_in"]

RUNTIMES: Final = (Gvisor.runtime, Container.runtime)


def drivers(settings: LocalSettings, disks: Disks, idmaps: IdMaps) -> dict[Runtime, Driver]:
    """Also those whose program is not installed: what they built before it was removed is still theirs to dial."""
    made: tuple[Driver, ...] = (
        Gvisor(settings.runsc, disks, idmaps),
        Container(settings.runc, disks, idmaps),
    )
    return {driver.runtime: driver for driver in made}


def not_built_in(runtime: Runtime) -> str:
    """Why there is no driver: a reason, never a weaker stand-in."""
    return (
        f"{runtime} is not available on this host: microVMs are not built into this version; "
        "use gvisor, or container where its weaker isolation is acceptable"
    )
