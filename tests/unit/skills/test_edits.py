"""An entry goes into a JSON text and out again, and everything else stays, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from k8e.errors import InvalidSpec
from k8e.skills import edits
from k8e.skills.edits import find, put, without
from k8e.skills.jsonc import Broken, Value, read
from tests.unit.skills.documents import GAPS, objects, texts
from tests.unit.skills.test_jsonc import meant

PATH = ("mcpServers", "k8e-sandbox")
ENTRY: dict[str, Value] = {"command": "k8e", "args": ["sandbox-mcp"]}
MANY = """{
    "k8e-sandbox": {
        "command": "k8e",
        "args": [
            "sandbox-mcp"
        ]
    }
}"""


def is_spread(small: str, large: str) -> bool:
    """Whether all of the small text is in the large one, in its order."""
    letters = iter(large)
    return all(letter in letters for letter in small)


def parsed(text: str) -> object:
    root = read(text)
    assert root is not None
    return meant(root.value)


@given(data=st.data(), value=objects())
def test_what_is_put_in_is_there_and_nothing_else_changed(data: st.DataObject, value: dict[str, object]) -> None:
    text = data.draw(GAPS) + data.draw(texts(value)) + data.draw(GAPS)
    servers = value.get("mcpServers", {})
    assert isinstance(servers, dict)
    made = put(text, PATH, ENTRY)
    assert parsed(made) == {**value, "mcpServers": {**servers, "k8e-sandbox": ENTRY}}
    if "k8e-sandbox" not in servers:
        assert is_spread(text, made), "nothing of the text may go"
    assert find(made, PATH) == ENTRY
    assert put(made, PATH, ENTRY) == made or "k8e-sandbox" in servers


@given(data=st.data(), value=objects())
def test_what_is_taken_out_is_gone_and_nothing_else_changed(data: st.DataObject, value: dict[str, object]) -> None:
    servers = value.get("mcpServers", {})
    assert isinstance(servers, dict)
    text = data.draw(GAPS) + data.draw(texts(value)) + data.draw(GAPS)
    made = without(text, PATH)
    left = {key: each for key, each in servers.items() if key != "k8e-sandbox"}
    assert parsed(made) == ({**value, "mcpServers": left} if "mcpServers" in value else value)
    assert is_spread(made, text), "nothing may come in"
    if "k8e-sandbox" not in servers:
        assert made == text


@given(data=st.data(), value=objects())
def test_into_a_list_of_servers_and_out_again_gives_the_same_bytes(
    data: st.DataObject, value: dict[str, object]
) -> None:
    servers = value.get("mcpServers")
    assume(isinstance(servers, dict) and servers and "k8e-sandbox" not in servers)
    text = json.dumps(value, ensure_ascii=False, indent=data.draw(st.sampled_from([None, 1, 2, 4, "\t"])))
    text = text.replace("\n", data.draw(st.sampled_from(["\n", "\r\n"])))
    assert without(put(text, PATH, ENTRY), PATH) == text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "mcpServers": ' + MANY.replace("    ", "  ").replace("\n", "\n  ") + "\n}\n"),
        ('{"a":1}', '{"a":1,"mcpServers":{"k8e-sandbox":{"command":"k8e","args":["sandbox-mcp"]}}}'),
        ('{"a": 1}\n', '{"a": 1, "mcpServers": {"k8e-sandbox": {"command": "k8e", "args": ["sandbox-mcp"]}}}\n'),
        ('{\n    "a": 1\n}\n', '{\n    "a": 1,\n    "mcpServers": ' + MANY.replace("\n", "\n    ") + "\n}\n"),
        ('{\n    "a": 1,\n}\n', '{\n    "a": 1,\n    "mcpServers": ' + MANY.replace("\n", "\n    ") + ",\n}\n"),
        (
            '{\r\n\t"a": 1 // one\r\n\t// two  \r\n}',
            (
                '{\n\t"a": 1, // one\n\t// two  \n\t"mcpServers": '
                + MANY.replace("    ", "\t").replace("\n", "\n\t")
                + "\n}"
            ).replace("\n", "\r\n"),
        ),
        ("// mine\n{}\n", '// mine\n{\n  "mcpServers": ' + MANY.replace("    ", "  ").replace("\n", "\n  ") + "\n}\n"),
    ],
    ids=["new", "dense", "one line", "lines", "trailing comma", "tabs, CRLF, comments", "empty"],
)
def test_an_entry_looks_like_what_is_around_it(before: str, after: str) -> None:
    assert put(before, PATH, ENTRY) == after


def test_only_the_entry_changes_when_it_is_replaced() -> None:
    text = '{ /* 1 */ "mcpServers" : {"k8e-sandbox" : {"command": "old"} /* 2 */ , "b":0x }}'.replace("0x", "0")
    assert put(text, PATH, {"url": "u"}) == text.replace('{"command": "old"}', '{"url": "u"}')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"mcpServers": {"k8e-sandbox": 1, "b": 2}}', '{"mcpServers": {"b": 2}}'),
        ('{"mcpServers": {"b": 2, "k8e-sandbox": 1}}', '{"mcpServers": {"b": 2}}'),
        ('{"mcpServers": {\n  "k8e-sandbox": 1\n}}', '{"mcpServers": {}}'),
        ('{"mcpServers": {"b": 1, // x\n "k8e-sandbox": 2}}', '{"mcpServers": {"b": 1 // x\n }}'),
        ('{"mcpServers": {\n // x\n "k8e-sandbox": 2, // y\n "b": 1}}', '{"mcpServers": {\n // x\n // y\n "b": 1}}'),
        ('{"mcpServers": {"b": 1,\n "k8e-sandbox": 2, "c": 3}}', '{"mcpServers": {"b": 1,\n "c": 3}}'),
        ('{"mcpServers": {"b": 1, "k8e-sandbox": 2,}}', '{"mcpServers": {"b": 1,}}'),
    ],
)
def test_comments_beside_an_entry_stay_when_it_goes(before: str, after: str) -> None:
    assert without(before, PATH) == after


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[]", "the whole is no object"),
        ('{"mcpServers": []}', "'mcpServers' is no object"),
        ('{"mcpServers": null}', "'mcpServers' is no object"),
        ('{"mcpServers": {}, "mcpServers": {}}', "'mcpServers' stands there twice"),
        ('{"mcpServers": {"k8e-sandbox": 1, "k8e-sandbox": 2}}', "'k8e-sandbox' stands there twice"),
        ("{", "a key in quotes"),
    ],
)
def test_where_there_is_no_place_for_an_entry_it_says_why(text: str, part: str) -> None:
    with pytest.raises(Broken, match=part):
        put(text, PATH, ENTRY)
    with pytest.raises(Broken, match=part):
        without(text, PATH)
    with pytest.raises(Broken, match=part):
        find(text, PATH)


def test_json5_gets_an_entry_in_its_own_style() -> None:
    text = "{\n  // mine\n  mcp: {\n    servers: { 'a': {url: 'x',}, },\n  },\n}\n"
    path = ("mcp", "servers", "k8e-sandbox")
    made = put(text, path, {"url": "u"}, is_json5=True)
    assert made == text.replace(", },", ', "k8e-sandbox": {"url": "u"}, },')
    assert find(made, path, is_json5=True) == {"url": "u"}
    assert without(made, path, is_json5=True) == text


@pytest.mark.parametrize("made", ['{"a": 1', '{"a": 1, "b": 2}', ""])
def test_an_edit_that_would_say_something_else_is_refused(made: str) -> None:
    assert edits._checked('{"a": "x"}', {"a": "x"}, False) == '{"a": "x"}'
    with pytest.raises(InvalidSpec, match="edit it by hand"):
        edits._checked(made, {"a": "x"}, False)
