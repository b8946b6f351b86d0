"""README.md is true: in a fresh checkout its commands and programs are run as they stand there, and answer what it says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.users_checkout import UsersCheckout

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def _commands() -> list[str]:
    """Every line that starts our command; `make test` is what runs this, and the installation is done before."""
    return [line.partition("   #")[0] for block in _blocks("sh") for line in block.splitlines() if "k8e " in line]


def test_there_is_something_to_run() -> None:
    assert _commands()
    assert _blocks("python")
    assert _blocks("json")


@pytest.mark.parametrize("command", _commands())
def test_a_command_of_the_readme_answers_as_it_says(
    command: str, users_checkout: UsersCheckout, users_environ: dict[str, str]
) -> None:
    done = subprocess.run(
        ["bash", "-c", command], cwd=users_checkout.root, env=users_environ, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (shown,) = map(json.loads, _blocks("json"))
    told = json.loads(done.stdout)
    differing = {"session_id", "duration_ms"}
    assert list(told) == list(shown)
    assert {key: told[key] for key in told.keys() - differing} == {key: shown[key] for key in shown.keys() - differing}


@pytest.mark.parametrize("program", _blocks("python"))
def test_a_program_of_the_readme_runs(
    program: str, users_checkout: UsersCheckout, users_environ: dict[str, str]
) -> None:
    argv = [str(users_checkout.python), "-c", program]
    done = subprocess.run(argv, env=users_environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "42\n\n2 /workspace/data.csv\ndone\n"


def test_the_links_of_every_document_lead_somewhere() -> None:
    broken = [
        f"{document.name}: {link}"
        for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
        if not (document.parent / link).exists()
    ]
    assert broken == []


def test_the_readme_is_one_screen() -> None:
    assert len(README.splitlines()) <= 60
