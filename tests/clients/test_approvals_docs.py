"""docs/approvals.md is true: its examples are run in order in one shell, and each answers what it says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.client import SandboxClient
from k8e.settings import OPTIONS
from tests.support.dev_mode import PATIENT
from tests.support.executed import blocks, follow, shell
from tests.support.users_checkout import UsersCheckout

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "approvals.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$\n\n```text\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def no_pager(client: SandboxClient) -> Iterator[None]:
    """The page makes a key; the server is everybody's."""
    yield
    client.delete_api_key("pager")


def test_the_examples_answer_as_the_page_says(
    users_checkout: UsersCheckout, users_environ: dict[str, str], tmp_path: Path, no_pager: None
) -> None:
    document = blocks(DOCUMENT)
    assert len(document) >= 5
    assert all(block.answer is not None for block in document)
    with shell(tmp_path, users_environ) as here:
        follow(document, here)
    ((program, shown),) = PROGRAMS
    assert DOCUMENT.count("```python\n") == 1
    done = subprocess.run(
        [str(users_checkout.python), "-X", "dev", "-c", PATIENT + program],
        cwd=tmp_path / "work",
        env=users_environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert re.fullmatch(".*?".join(map(re.escape, shown.split("…"))), done.stdout), done.stdout


def test_the_flags_that_the_page_names_are_the_servers() -> None:
    named = {name.replace("-", "_") for name in re.findall(r"k8e server --([a-z-]+)", DOCUMENT)}
    assert named == {"gates", "approve_in_person"}
    assert named <= {option.name for option in OPTIONS}
