"""docs/ports.md is true: its examples are run in order in one shell, and each answers what it says."""

from __future__ import annotations

import re
from pathlib import Path

from k8e.engine.settings import Quotas
from k8e.settings import OPTIONS
from tests.support.executed import blocks, follow, shell

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "ports.md").read_text(encoding="utf-8")


def test_the_examples_answer_as_the_page_says(users_environ: dict[str, str], tmp_path: Path) -> None:
    document = blocks(DOCUMENT)
    assert len(document) >= 4
    assert all(block.answer is not None for block in document)
    with shell(tmp_path, users_environ) as here:
        follow(document, here)


def test_the_setting_and_its_default_are_the_servers() -> None:
    assert f"at most {Quotas().ports_per_session} at a time" in DOCUMENT
    assert re.findall(r"`--([a-z-]+-per-session)`", DOCUMENT) == ["ports-per-session"]
    assert "ports_per_session" in {option.name for option in OPTIONS}
