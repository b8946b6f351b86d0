"""A process's memory as the kernel counts it, and its highest mark since we last asked."""

from __future__ import annotations

from pathlib import Path

__all__ = ["peak_bytes", "reset_peak", "resident_bytes"]

_RESET_PEAK = "5"
"""proc(5), clear_refs: set the high-water mark to what is resident now."""


def resident_bytes(pid: int) -> int:
    return _field(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """The most that was resident at once since the start or the last reset."""
    return _field(pid, "VmHWM")


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)


def _field(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
