"""Where and with what the figures were made."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from bench.alternatives import python_path
from k8e import __version__

__all__ = ["facts"]


def facts(runsc: Path, runc: Path) -> dict[str, str | int]:
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count() or 0,
        "memory": _first("/proc/meminfo", "MemTotal"),
        "load_at_start": f"{os.getloadavg()[0]:.2f}",
        "k8e": __version__,
        "server_python": platform.python_version(),
        "bare_python": _version(python_path()),
        "runsc": _version(str(runsc)),
        "runc": _version(str(runc)),
    }


def _first(path: str, key: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _version(program: str) -> str:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=30)
    return (answer.stdout or answer.stderr).splitlines()[0].strip()
