"""Runtimes whose names are known but which this build cannot start: a reason, never a weaker stand-in."""

from __future__ import annotations

from k8e.model import Availability, Runtime

__all__ = ["reason"]

_MICROVM = "microVMs are not built into this version; use gvisor, or container where its weaker isolation is acceptable"
_REASONS = {
    Runtime.GVISOR: "no runsc was found; `k8e doctor --fix` installs it",
    Runtime.CONTAINER: "no runc was found; `apt-get install runc` (or `k8e doctor --fix`) provides it",
    Runtime.KATA: _MICROVM,
    Runtime.FIRECRACKER: _MICROVM,
}


def reason(runtime: Runtime) -> Availability:
    """Why `runtime` is not available on this host."""
    return Availability(available=False, detail=f"{runtime} is not available on this host: {_REASONS[runtime]}")
