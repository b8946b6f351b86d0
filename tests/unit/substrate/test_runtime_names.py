"""A runtime's name is for its driver: whatever else would ask for it has to be told by a method of the driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import k8e

SOURCE = Path(k8e.__file__).parent
DRIVERS = SOURCE / "substrate" / "local" / "runtimes"
_WORD = r'["\'](gvisor|container|kata|firecracker)["\']'
NAMED = re.compile(
    r"\bRuntime\.(GVISOR|CONTAINER|KATA|FIRECRACKER)\b"
    rf"|\bRuntime[\[(]{_WORD}"
    rf"|(?:[!=]=|\bin|\bcase|\|) ?[\[({{]?(?:{_WORD}, ?)*{_WORD}"
    rf"|{_WORD} (?:[!=]=|in\b|not in\b)"
)
ALLOWED = {"model.py", "settings.py", "server.py", "setup/provision.py"}
"""Defaults, what an operator is told when the default is not there, and what set-up installs."""
LOOK_AT_THE_KERNEL = {"agent/limits.py", "agent/foreground.py"}
"""The agent is told of no runtime: it looks at the release of the kernel that it runs on."""


@pytest.mark.parametrize(
    "text",
    [
        "runtime is Runtime.KATA",
        'Runtime("gvisor")',
        'runtime == "container"',
        'if "gvisor" != name',
        '"gvisor" in os.uname().release',
        'runtime in ("gvisor", "container")',
        'case "gvisor":',
        'case "x" | "kata":',
    ],
)
def test_a_name_is_seen_however_it_is_asked_for(text: str) -> None:
    assert NAMED.search(text)


@pytest.mark.parametrize("text", ['"--runtime", "gvisor"', "a container in a group", "# in gvisor"])
def test_a_word_of_a_text_is_no_question(text: str) -> None:
    assert not NAMED.search(text)


def test_only_drivers_name_runtimes() -> None:
    naming = {path for path in SOURCE.rglob("*.py") if NAMED.search(path.read_text(encoding="utf-8"))}
    assert {path.name for path in naming if path.parent == DRIVERS} == {"gvisor.py", "container.py"}, "the control"
    others = {str(path.relative_to(SOURCE)) for path in naming if path.parent != DRIVERS}
    assert others == ALLOWED | LOOK_AT_THE_KERNEL
