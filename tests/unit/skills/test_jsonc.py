"""JSON as people write it is read as what it means, and what is no JSON is refused with the place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.skills.jsonc import DEEPEST, Broken, Number, Value, place, read
from tests.unit.skills.documents import GAPS, objects, texts


def meant(value: Value) -> object:
    """As the standard library would say it."""
    if isinstance(value, Number):
        return json.loads(value.text)
    if isinstance(value, dict):
        return {key: meant(each) for key, each in value.items()}
    return [meant(each) for each in value] if isinstance(value, list) else value


@given(data=st.data(), value=objects(), is_json5=st.booleans())
def test_every_text_of_a_value_is_read_as_that_value(data: st.DataObject, value: object, is_json5: bool) -> None:
    text = data.draw(GAPS) + data.draw(texts(value)) + data.draw(GAPS)
    root = read(text, is_json5=is_json5)
    assert root is not None
    assert meant(root.value) == value
    assert text[root.start] + text[root.end - 1] == "{}"


@given(data=st.data(), value=objects())
def test_every_member_is_where_it_says(data: st.DataObject, value: object) -> None:
    text = data.draw(texts(value))
    root = read(text)
    assert root is not None
    for member in root.members or ():
        assert json.JSONDecoder().raw_decode(text, member.start)[0] == member.key
        again = read(text[member.node.start : member.node.end])
        assert again is not None
        assert again.value == member.node.value
        assert member.comma is None or text[member.comma] == ","


@given(text=st.text(alphabet='{}[]":,/*\n\\ atrue1.-e', max_size=30), is_json5=st.booleans())
def test_any_text_is_either_read_or_refused_with_a_place(text: str, is_json5: bool) -> None:
    try:
        root = read(text, is_json5=is_json5)
        end = root.end if root else 0
    except Broken as error:
        end = error.position
    assert 0 <= end <= len(text)


@given(text=st.text(alphabet='{}[]":, \n\\atrue1.-e', max_size=30))
def test_without_comments_and_trailing_commas_it_agrees_with_the_standard_library(text: str) -> None:
    try:
        wanted = json.loads(text)
    except ValueError:
        return
    root = read(text)
    assert root is not None
    assert meant(root.value) == wanted


@pytest.mark.parametrize("text", ["", " \n", "// nothing\n", "/* */"])
def test_nothing_is_nothing(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("text", "where", "part"),
    [
        ('{"a": 1,\n "b" 2}', "line 2, column 6", "a colon is expected, not '2'"),
        ('{"a": }', "line 1, column 7", "a value is expected"),
        ('{"a": 1', "line 1, column 8", "not the end of the file"),
        ('{"a": 1} x', "line 1, column 10", "after the end"),
        ("{a: 1}", "line 1, column 2", "a key in quotes"),
        ("{'a': 1}", "line 1, column 2", "a key in quotes"),
        ('{"a": 01}', "line 1, column 7", "a value is expected"),
        ('{"a": "\\q"}', "line 1, column 7", "an escape that JSON does not have"),
        ('{"a": "x\ny"}', "line 1, column 7", "a value is expected"),
        ('{"a": 1, /* b', "line 1, column 10", "a comment that does not end"),
        ('{"a": [1 2]}', "line 1, column 10", "a comma or ] is expected"),
        ("[" * (DEEPEST + 2), f"line 1, column {DEEPEST + 2}", "levels deep"),
        ('{"a": tru}', "line 1, column 7", "a value is expected"),
        ('{"a": truer}', "line 1, column 7", "a value is expected"),
        ('{,"a": 1}', "line 1, column 2", "a key in quotes"),
    ],
)
def test_what_is_broken_is_refused_with_the_place(text: str, where: str, part: str) -> None:
    with pytest.raises(Broken) as refused:
        read(text)
    assert part in str(refused.value)
    assert place(text, refused.value.position) == where


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, $b_2: 'x', \"c\": .5,}", {"a": Number("1"), "$b_2": "x", "c": Number(".5")}),
        (
            "{ключ: +0xFF, n: NaN, i: -Infinity}",
            {"ключ": Number("+0xFF"), "n": Number("NaN"), "i": Number("-Infinity")},
        ),
        (
            r"""{a: 'it\'s \x41\u0042\n\
two', b: "\v\0\q"}""",
            {"a": "it's AB\ntwo", "b": "\v\0q"},
        ),
        ("\ufeff{\u00a0a:1}", {"a": Number("1")}),
    ],
)
def test_json5_is_taken_where_an_agent_takes_it_and_only_there(text: str, value: object) -> None:
    root = read(text, is_json5=True)
    assert root is not None
    assert root.value == value
    with pytest.raises(Broken):
        read(text)
