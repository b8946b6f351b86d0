"""docs/api.md is true: its examples are run in order in one shell, and each answers what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```sh\n(.*?)^```$\n\n```(?:json|text)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
BETWEEN = "=== the next example ==="


@pytest.fixture
def told(environ: dict[str, str]) -> list[str]:
    """What every example printed."""
    script = f"\necho; echo '{BETWEEN}'\n".join(example for example, _ in EXAMPLES)
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split(BETWEEN)


def pattern(shown: str) -> str:
    """What an example must print: … stands for what differs from one time to the next."""
    return ".*?".join(map(re.escape, shown.strip().split("…")))


def test_every_example_is_followed_by_its_answer() -> None:
    assert len(EXAMPLES) >= 8
    assert len(EXAMPLES) == DOCUMENT.count("```sh\n")


def test_the_examples_answer_as_the_document_says(told: list[str]) -> None:
    assert len(told) == len(EXAMPLES)
    for (example, shown), printed in zip(EXAMPLES, told, strict=True):
        lines = "\n".join(line for line in printed.splitlines() if line)
        wanted = "\n".join(line for line in shown.splitlines() if line)
        assert re.fullmatch(pattern(wanted), lines), f"{example}\nprinted\n{lines}\nand not\n{wanted}"
