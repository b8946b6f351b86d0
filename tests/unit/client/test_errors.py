"""Every error says what to do next."""

from __future__ import annotations

import re
import traceback

import pytest

from k8e.client import errors
from k8e.client.errors import BY_CODE, BY_WORD, Exhausted, SandboxError, rebuilt
from k8e.doors.service.errors import TABLE

CLASSES = [getattr(errors, name) for name in errors.__all__ if name[0].isupper() and not name.startswith("BY_")]


def test_the_tree_that_is_drawn_is_the_tree_that_is() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    assert sorted([*drawn, "SandboxError"]) == sorted(kind.__name__ for kind in CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_has_a_remedy_of_its_own(kind: type[SandboxError]) -> None:
    assert "remedy" in vars(kind)
    assert len({each.remedy for each in CLASSES}) == len(CLASSES)


def test_a_traceback_shows_what_to_do() -> None:
    error = rebuilt("NOT_FOUND", "not_found", "session x not found")
    assert str(error) == "session x not found"
    assert "list what there is" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(("code", "word"), TABLE.values())
def test_every_error_that_the_server_can_send_has_its_class(code: str, word: str) -> None:
    assert type(rebuilt(code, word, "text")) is BY_WORD[word]


@pytest.mark.parametrize("code", BY_CODE)
def test_a_server_that_sends_no_word_is_understood_by_its_code(code: str) -> None:
    assert type(rebuilt(code, "", "text")) is BY_CODE[code]


def test_an_unknown_code_is_the_root_and_a_limit_says_when() -> None:
    assert type(rebuilt("SOMETHING_NEW", "new", "text")) is SandboxError
    limited = rebuilt("RESOURCE_EXHAUSTED", "exhausted", "full", 2.5)
    assert isinstance(limited, Exhausted)
    assert limited.retry_after_s == 2.5
