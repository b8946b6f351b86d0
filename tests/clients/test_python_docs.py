"""docs/python.md is true: with what it says to install, its programs are run as they stand there, and print what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.clients.test_former_sdk import GENERATING
from tests.support.dev_mode import PATIENT
from tests.support.users_checkout import INSTALLED_BY, UsersCheckout, shell_blocks

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"^## (.*?)$\n.*?^```python\n(.*?)^```$\n\n```text\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE
)


def test_what_it_says_to_install_is_what_its_programs_are_run_with() -> None:
    assert shell_blocks(DOCUMENT) == [f"{INSTALLED_BY}\n", GENERATING]


def test_every_program_is_followed_by_what_it_prints() -> None:
    assert len(EXAMPLES) >= 8
    assert len(EXAMPLES) == DOCUMENT.count("```python\n") == DOCUMENT.count("```text\n")


@pytest.mark.parametrize(("program", "shown"), [pytest.param(*rest, id=title) for title, *rest in EXAMPLES])
def test_a_program_prints_what_the_page_says(
    program: str, shown: str, users_checkout: UsersCheckout, users_environ: dict[str, str]
) -> None:
    argv = [str(users_checkout.python), "-X", "dev", "-c", PATIENT + program]
    done = subprocess.run(argv, env=users_environ, capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == shown
