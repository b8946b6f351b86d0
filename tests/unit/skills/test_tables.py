"""A table goes into a TOML text and out again, and everything else stays, byte for byte."""

from __future__ import annotations

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.errors import InvalidSpec
from k8e.skills import tables
from k8e.skills.jsonc import Broken, Value, place
from k8e.skills.tables import find, put, without

PATH = ("mcp_servers", "k8e-sandbox")
ENTRY: dict[str, Value] = {"command": 'C:\\k8e "x"', "args": ["sandbox-mcp", "ü"], "env": {"K8E_HOME": "/a b"}}
TABLE = """[mcp_servers.k8e-sandbox]
command = "C:\\\\k8e \\"x\\""
args = ["sandbox-mcp", "ü"]
env = { K8E_HOME = "/a b" }
"""

PIECES = st.sampled_from(
    [
        "# a comment [mcp_servers.k8e-sandbox]\n",
        "\n",
        "[mcp_servers.other]\ncommand = 'x' # [y]\nargs = [\n  \"[mcp_servers.k8e-sandbox]\", # ]\n  '#',\n]\n",
        '[text]\nlong = """\n[mcp_servers.k8e-sandbox]\ncommand = "no"\n\\""""""\n',
        "[literal]\nlong = '''\n[mcp_servers.k8e-sandbox]\n'''''\n",
        "[[array]]\nx = { a = [1, 2], b = '}' }\n",
        '["quo.ted"]\n"k#" = 1979-05-27T07:32:00Z\n',
        "  [indented] # [x]\n  y = 0x10\n",
    ]
)


@st.composite
def documents(draw: st.DrawFn) -> str:
    pieces = draw(st.lists(PIECES, max_size=6, unique=True))
    text = "model = 'o'\n" + "".join(pieces)
    text = text if draw(st.booleans()) else text.removesuffix("\n")
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


@given(text=documents())
def test_a_table_is_added_behind_everything_and_nothing_else_changes(text: str) -> None:
    made = put(text, PATH, ENTRY)
    wanted = tomllib.loads(text)
    wanted.setdefault("mcp_servers", {})["k8e-sandbox"] = ENTRY
    assert tomllib.loads(made) == wanted
    assert made.startswith(text)
    assert find(made, PATH) == ENTRY
    assert put(made, PATH, ENTRY) == made
    assert ("\r\n" in text) is ("\r\n" in made.removeprefix(text))


@given(text=documents())
def test_in_and_out_again_gives_the_same_bytes(text: str) -> None:
    assert without(text, PATH) == text
    # One end of the last line there is afterwards, whether there was none or several.
    newline = "\r\n" if "\r\n" in text else "\n"
    ended = re.sub(r"(?:\r?\n)*\Z", newline, text, count=1)
    assert without(put(ended, PATH, ENTRY), PATH) == ended


@given(before=documents(), after=st.lists(PIECES, max_size=3, unique=True))
def test_a_table_in_the_middle_is_replaced_and_removed_where_it_is(before: str, after: list[str]) -> None:
    head = before.replace("\r\n", "\n").rstrip("\n") + "\n\n"
    # A table may be named only once.
    tail = "".join("\n" + piece for piece in after if piece.split("\n")[0] not in head)
    text = head + TABLE + tail
    assert put(text, PATH, {"url": "u"}) == head + '[mcp_servers.k8e-sandbox]\nurl = "u"\n' + tail
    assert without(text, PATH) == head.removesuffix("\n") + tail


@pytest.mark.parametrize(
    "text",
    [
        "mcp_servers = {}\n",
        "mcp_servers = { k8e-sandbox = { command = 'x' } }\n",
        "[mcp_servers]\nk8e-sandbox = { command = 'x' }\n",
        "mcp_servers.k8e-sandbox.command = 'x'\n",
        "[mcp_servers.k8e-sandbox.env]\nA = 'b'\n",
        "[mcp_servers.k8e-sandbox]\ncommand = 'x'\n[other]\na = 1\n[mcp_servers.k8e-sandbox.env]\nA = 'b'\n",
        "mcp_servers = 1\n",
    ],
)
def test_forms_that_are_not_edited_here_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"by hand|no table"):
        put(text, PATH, ENTRY)
    if find(text, PATH) is not None:
        with pytest.raises(InvalidSpec, match="by hand"):
            without(text, PATH)


def test_sub_tables_right_behind_a_table_are_part_of_it() -> None:
    text = "a = 1\n\n" + TABLE + "\n[mcp_servers.k8e-sandbox.more]\nB = 'c' # mine\n\n[z]\n"
    assert find(text, PATH) == {**ENTRY, "more": {"B": "c"}}
    assert without(text, PATH) == "a = 1\n # mine\n\n[z]\n"
    assert put(text, PATH, ENTRY) == "a = 1\n\n" + TABLE.removesuffix("\n") + " # mine\n\n[z]\n"


@pytest.mark.parametrize(
    ("text", "where"),
    [("a = 1\nb = \n", "line 2, column 5"), ("a = 1\r\n[b\r\n", "line 2, column 3"), ("x = [1,", "line 1, column 8")],
)
def test_what_is_broken_is_refused_with_the_place(text: str, where: str) -> None:
    with pytest.raises(Broken) as refused:
        put(text, PATH, ENTRY)
    assert place(text, refused.value.position) == where
    assert "(at " not in str(refused.value) or "end of document" in str(refused.value)


def test_what_has_no_place_in_a_table_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="no place"):
        put("", PATH, {"command": None})


def test_other_values_are_seen_but_not_understood() -> None:
    assert find("[mcp_servers.k8e-sandbox]\ntimeout = 1.5\non = true\n", PATH) == {"timeout": "1.5", "on": True}
    assert find("mcp_servers = 1", PATH) is None


def test_an_edit_that_would_say_something_else_is_refused() -> None:
    assert tables._checked("a = 1\n", {"a": 1, "b": {}}) == "a = 1\n"
    for made in ("a = 2", "a = "):
        with pytest.raises(InvalidSpec, match="by hand"):
            tables._checked(made, {"a": 1})
