"""docs/python.md is true: its programs are run as they stand there, and print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dev_mode import PATIENT

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"^## (.*?)$\n.*?^```python\n(.*?)^```$\n\n```text\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE
)


def test_every_program_is_followed_by_what_it_prints() -> None:
    assert len(EXAMPLES) >= 8
    assert len(EXAMPLES) == DOCUMENT.count("```python\n") == DOCUMENT.count("```text\n")


@pytest.mark.parametrize(("program", "shown"), [pytest.param(*rest, id=title) for title, *rest in EXAMPLES])
def test_a_program_prints_what_the_page_says(program: str, shown: str, environ: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PATIENT + program], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == shown
