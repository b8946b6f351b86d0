"""What an agent says, as values: what passes can be carried through every door, and the rest is an error."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.protobuf import json_format

from k8e.doors.service.files import entry_message
from k8e.engine import answers
from k8e.errors import SandboxFailed
from k8e.model import FileEntry, FileKind

NO_NUMBERS: list[Any] = [
    None,
    True,
    "7",
    [],
    {},
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    10**30,
    -(10**30),
    10**4000,
    2**64,
]


@pytest.mark.parametrize("value", [0, 1, answers.INT64])
def test_the_control_a_whole_number_is_itself(value: int) -> None:
    assert answers.integer({"a": value}, "a") == value


@pytest.mark.parametrize("value", [*NO_NUMBERS, -1, 1.0, 2**63])
def test_what_is_no_whole_number_in_64_bits_is_nonsense(value: object) -> None:
    with pytest.raises(SandboxFailed, match="answered nonsense"):
        answers.integer({"a": value}, "a")


def test_a_number_has_the_bounds_of_its_field() -> None:
    assert answers.integer({"a": -1}, "a", least=-1, most=5) == -1
    with pytest.raises(SandboxFailed):
        answers.integer({"a": 6}, "a", most=5)


@pytest.mark.parametrize("fields", [{}, {"a": None}])
def test_only_an_optional_number_may_be_left_out(fields: dict[str, Any]) -> None:
    assert answers.optional(fields, "a", default=-1) == -1
    with pytest.raises(SandboxFailed):
        answers.integer(fields, "a")


@pytest.mark.parametrize(
    ("said", "meant"), [(0, 0.0), (1.5, 1.5), (-3, -3.0), (2.0**63, 2.0**53), (-(2**63), -(2.0**53))]
)
def test_a_time_is_one_that_every_door_carries(said: float, meant: float) -> None:
    assert answers.seconds({"a": said}, "a") == meant


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_time_is_nonsense(value: object) -> None:
    with pytest.raises(SandboxFailed, match="answered nonsense"):
        answers.seconds({"a": value}, "a")


@pytest.mark.parametrize("value", ["", "a", "\udcff", "ä" * 2048])
def test_the_control_any_name_that_linux_allows_is_a_text(value: str) -> None:
    assert answers.text({"a": value}, "a") == value


@pytest.mark.parametrize("value", [None, 3, [], "\ud800", "x" * 4097, "ä" * 2049])
def test_what_is_no_text_or_too_long_is_nonsense(value: object) -> None:
    with pytest.raises(SandboxFailed, match="answered nonsense"):
        answers.text({"a": value}, "a")


def test_a_word_is_ascii() -> None:
    assert answers.word({"a": "file"}, "a") == "file"
    for value in ("\udcff", "ä", "x" * 33):
        with pytest.raises(SandboxFailed):
            answers.word({"a": value}, "a")


def test_lists_have_an_end_and_one_kind_of_content() -> None:
    assert answers.rows({"a": [{}, {}]}, "a", most=2) == [{}, {}]
    assert answers.texts({"a": ["b"]}, "a", most=2) == ["b"]
    bads: list[Any] = [[{}] * 3, {}, None, [1], [[]]]
    for bad in bads:
        with pytest.raises(SandboxFailed):
            answers.rows({"a": bad}, "a", most=2)
        with pytest.raises(SandboxFailed):
            answers.texts({"a": bad}, "a", most=2)


@pytest.mark.parametrize(("said", "shown"), [("why", "why"), ("x" * 9, "xxxx"), ("\ud800", "?"), (3, ""), (None, "")])
def test_words_for_people_are_never_an_error(said: object, shown: str) -> None:
    assert answers.note({"a": said}, "a", most=4) == shown


def test_the_largest_that_passes_is_encoded_by_every_door() -> None:
    fields = {"size": answers.INT64, "mode": answers.INT32, "modified": 2.0**63, "path": "\udcff" * 4096}
    message = entry_message(
        FileEntry(
            path=answers.text(fields, "path"),
            kind=FileKind.OTHER,
            size=answers.integer(fields, "size"),
            modified_s=answers.seconds(fields, "modified"),
            mode=answers.integer(fields, "mode", most=answers.INT32),
        )
    )
    assert message.SerializeToString()
    assert json.loads(json_format.MessageToJson(message))["size"] == str(answers.INT64)
