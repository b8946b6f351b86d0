"""docs/a2a.md is true: its examples are run in order against a real agent, and answer what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.a2a_peer import running

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "a2a.md").read_text(encoding="utf-8")
ANSWER = r"\n\n```text\n((?:(?!```).*\n)*)```$"
SHELL = re.findall(r"^```sh\n((?:(?!```).*\n)*)```" + ANSWER, DOCUMENT, re.MULTILINE)
PYTHON = re.findall(r"^````python\n((?:(?!````).*\n)*)````" + ANSWER, DOCUMENT, re.MULTILINE)
SERVES = re.findall(r"^k8e a2a([^&#\n]*)", DOCUMENT, re.MULTILINE)
# The official client gives up after five seconds without a word; a busy machine may take longer to make a sandbox.
PATIENT = """\
import functools, httpx
httpx.AsyncClient.__init__ = functools.partialmethod(httpx.AsyncClient.__init__, timeout=60)
"""


def pattern(shown: str) -> str:
    """… stands for what differs from one time to the next."""
    return ".*?".join(map(re.escape, shown.strip().split("…")))


@pytest.fixture
def told(environ: dict[str, str]) -> Iterator[dict[str, str]]:
    """An environment with an agent in it."""
    with running(environ) as agent:
        yield environ | {"AGENT": agent.url}


def test_the_page_has_examples_with_answers() -> None:
    assert (len(SHELL), len(PYTHON), len(SERVES)) == (4, 1, 3)


def test_the_examples_answer_as_the_page_says(told: dict[str, str]) -> None:
    patient = [(PATIENT + example, shown) for example, shown in PYTHON]
    for argv, examples in ((["bash", "-ec"], SHELL), ([sys.executable, "-c"], patient)):
        for example, shown in examples:
            done = subprocess.run([*argv, example], env=told, capture_output=True, text=True, check=False, timeout=100)
            assert (done.returncode, done.stderr) == (0, "")
            assert re.fullmatch(pattern(shown), done.stdout.strip(), re.DOTALL), f"{example}\nprinted\n{done.stdout}"


@pytest.mark.parametrize("flags", SERVES)
def test_every_command_that_the_page_names_starts(environ: dict[str, str], flags: str) -> None:
    # At an address that is free here; everything else as it stands there.
    with running(environ, *flags.replace("--addr 0.0.0.0:8822", "").split()) as agent:
        assert agent.stop() == 0
