"""Asking a runtime's binary who it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

from k8e.model import Availability

__all__ = ["first_line"]

_TIMEOUT_S = 10.0


def first_line(binary: Path) -> Availability:
    """Available with its version, or the reason why it does not even answer."""
    try:
        result = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Availability(available=False, detail=f"{binary} does not run: {error}")
    return Availability(available=True, detail=result.stdout.partition("\n")[0].strip())
