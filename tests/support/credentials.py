"""What tests show to agents."""

from __future__ import annotations

import json
from typing import Final

from k8e.model import SandboxId
from k8e.substrate.machine import Machine
from k8e.wire.aio import Credentials

__all__ = ["CREDENTIALS", "written_down"]

CREDENTIALS: Final = Credentials(secret="secret of a test's sandbox", epoch=1)  # nothing is kept behind it
"""Of sandboxes that a test makes itself."""


def written_down(machine: Machine, sandbox: SandboxId) -> Credentials:
    """Those of the gateway that holds it."""
    owner = json.loads((machine.owners_dir / "sandboxes" / sandbox).read_text())
    return Credentials(secret=owner["secret"], epoch=owner["epoch"])
