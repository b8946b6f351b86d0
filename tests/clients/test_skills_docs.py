"""docs/skills.md is true: its examples are run in order in one shell, and each answers what it says."""

from __future__ import annotations

import re
from pathlib import Path

from k8e.skills.agents import AGENTS, Surroundings
from tests.support.executed import blocks, follow, shell

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "skills.md").read_text(encoding="utf-8")


def test_the_examples_answer_as_the_document_says(users_environ: dict[str, str], tmp_path: Path) -> None:
    document = blocks(DOCUMENT)
    assert len(document) >= 7
    assert all(block.answer is not None for block in document)
    with shell(tmp_path, users_environ) as here:
        follow(document, here)


def test_the_places_are_those_that_the_program_knows() -> None:
    home = Path("/h")
    here = Surroundings(home=home, workspace=home, environ={}, exists=lambda _: True)
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", DOCUMENT, re.MULTILINE)
    assert [name for name, *_ in rows] == list(AGENTS)
    for name, signs, entry, skill in rows:
        at = AGENTS[name].place(here)
        for path, cell in ((at.signs[0], signs), (at.config, entry), (at.skills, skill)):
            assert str(path.relative_to(home)) in cell, (name, path)
        assert at.path[-1] in entry or ".".join(at.path[:-1]) in entry


def test_every_variable_that_moves_a_place_is_named() -> None:
    asked: set[str] = set()

    class Asking(dict[str, str]):
        def get(self, key: str, default: object = None) -> str:
            asked.add(key)
            return ""

    for agent in AGENTS.values():
        agent.place(Surroundings(home=Path("/h"), workspace=Path("/w"), environ=Asking(), exists=lambda _: False))
    assert {name for name in asked if f"`{name}`" not in DOCUMENT} == set()
    assert asked
