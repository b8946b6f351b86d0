"""A runtime's name is for its driver: whatever else would ask for it has to be told by a method of the driver."""

from __future__ import annotations

import re
from pathlib import Path

import k8e

SOURCE = Path(k8e.__file__).parent
DRIVERS = SOURCE / "substrate" / "local" / "runtimes"
NAMED = re.compile(r'\bRuntime\.(GVISOR|CONTAINER|KATA|FIRECRACKER)\b|[!=]= "(gvisor|container|kata|firecracker)"')
ALLOWED = {"model.py", "settings.py", "server.py"}
"""Defaults, and what an operator is told when the default is not there."""


def test_only_drivers_name_runtimes() -> None:
    naming = {path for path in SOURCE.rglob("*.py") if NAMED.search(path.read_text(encoding="utf-8"))}
    assert {path.name for path in naming if path.parent == DRIVERS} == {"gvisor.py", "container.py"}, "the control"
    assert {str(path.relative_to(SOURCE)) for path in naming if path.parent != DRIVERS} == ALLOWED
