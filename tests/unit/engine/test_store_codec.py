"""Records are read exactly as their classes say, and are written in a form that does not change by accident."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.engine.approvals import APPROVALS, Approval
from k8e.engine.records import RUNS, SESSIONS, TERMINALS, RunRecord, SessionRecord, TerminalRecord
from k8e.engine.secrets import SECRETS, SecretRecord
from k8e.engine.store import Entry, Kind
from k8e.engine.store.codec import Malformed, decoder, encoded, encoded_with
from k8e.engine.store.sqlite import FORMATS, Contents
from k8e.engine.workspaces import WORKSPACES, WorkspaceView
from k8e.lifecycle import Phase
from k8e.model import (
    ApprovalId,
    Denial,
    Outcome,
    OwnerId,
    RunId,
    SandboxId,
    SessionId,
    SessionSpec,
    Status,
    TerminalId,
    WorkspaceId,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    number: int
    words: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    text: str
    ratio: float
    is_on: bool
    raw: bytes
    colour: Colour
    inner: Inner
    more: tuple[Inner, ...] = ()
    named: Mapping[str, str] = dataclasses.field(default_factory=dict)
    maybe: Inner | None = None
    when: float | None = None


_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
_INNER = st.builds(Inner, number=st.integers(), words=st.lists(_TEXT, max_size=3).map(tuple))
_OUTER = st.builds(
    Outer,
    text=_TEXT,
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    is_on=st.booleans(),
    raw=st.binary(max_size=8),
    colour=st.sampled_from(Colour),
    inner=_INNER,
    more=st.lists(_INNER, max_size=2).map(tuple),
    named=st.dictionaries(_TEXT, _TEXT, max_size=2),
    maybe=st.none() | _INNER,
    when=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)
READ = decoder(Outer)
GOOD = Outer(text="t", ratio=1.5, is_on=True, raw=b"\xff", colour=Colour.BLUE, inner=Inner(number=1))


@given(_OUTER)
def test_what_was_written_comes_back(value: Outer) -> None:
    text = encoded(value)
    assert text.isascii()
    assert READ(text) == value


@given(_OUTER, _OUTER)
def test_a_part_that_has_not_changed_is_written_as_before_and_one_that_has_anew(first: Outer, second: Outer) -> None:
    body, parts = encoded_with(first, {})
    assert READ(body) == first
    same_part = dataclasses.replace(second, inner=first.inner)
    for value in (same_part, second):
        body, _ = encoded_with(value, parts)
        assert READ(body) == value
    marked = {"inner": (first.inner, '{"number":7}')}
    body, _ = encoded_with(same_part, marked)
    assert READ(body) == dataclasses.replace(second, inner=Inner(number=7)), "it is not encoded again"


def test_what_has_a_default_may_be_missing_and_whole_numbers_are_numbers() -> None:
    fields = json.loads(encoded(GOOD))
    few = {name: fields[name] for name in ("text", "ratio", "is_on", "raw", "colour", "inner")} | {"ratio": 2}
    found = READ(json.dumps(few))
    assert found == dataclasses.replace(GOOD, ratio=2.0)
    assert isinstance(found.ratio, float)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"text": 1}, "text: int instead of text"),
        ({"text": None}, "text: NoneType instead of text"),
        ({"ratio": "1"}, "ratio: str instead of a number"),
        ({"ratio": True}, "ratio: bool instead of a number"),
        ({"ratio": 10**400}, "ratio: a number that is too large"),
        ({"is_on": 1}, "is_on: int instead of true or false"),
        ({"raw": "xy"}, "raw: no hexadecimal text"),
        ({"raw": 7}, "raw: no hexadecimal text"),
        ({"colour": "green"}, "colour: 'green' is none of red, blue"),
        ({"colour": ["red"]}, "colour: .* is none of red, blue"),
        ({"inner": {}}, "inner: 'number' is missing"),
        ({"inner": {"number": True}}, "inner: number: bool instead of an integer"),
        ({"inner": []}, "inner: list instead of an object"),
        ({"inner": {"number": 1, "odd": 1}}, "inner: 'odd' is no field of it"),
        ({"more": [{"number": 1.0}]}, "more: number: float instead of an integer"),
        ({"more": {}}, "more: dict instead of a list"),
        ({"named": {"a": 1}}, "named: int instead of text"),
        ({"maybe": 1}, "maybe: int instead of an object"),
        ({"when": "now"}, "when: str instead of a number"),
        ({"unknown": 1}, "'unknown' is no field of it"),
    ],
)
def test_what_a_class_does_not_say_is_refused_with_its_place(change: dict[str, object], what: str) -> None:
    fields = json.loads(encoded(GOOD))
    assert READ(json.dumps(fields)) == GOOD, "the control"
    with pytest.raises(Malformed, match=f"^{what}$"):
        READ(json.dumps(fields | change))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', '{"ratio": NaN}', '{"ratio": Infinity}'])
def test_what_is_no_record_at_all_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        READ(text)


def test_a_number_that_json_cannot_say_is_not_written() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        encoded(dataclasses.replace(GOOD, ratio=float("inf")))


OWNER, SESSION, SANDBOX = OwnerId("uid:0"), SessionId("s"), SandboxId("sb")
SPEC_FIELDS = (
    '{"session_id":"","tenant":"","runtime":"gvisor","image":"host","limits":{"cpus":1.0,"memory_bytes":1073741824,'
    '"processes":256,"disk_bytes":5368709120,"output_bytes":1048576,"run_output_bytes":67108864,'
    '"command_timeout_s":30.0,"ttl_s":86400.0,"idle_timeout_s":3600.0,"connections":256,"network_bytes_per_s":0},'
    '"env":{},"labels":{},"allowed_hosts":[],"network":"list","secret_refs":[],"brokered":[],"user":"",'
    '"gates":{"egress":false,"write_paths":[],"workspace":false,"secrets":false,"commands":[]}}'
)
FORMS: list[tuple[Kind[Any], object, str]] = [
    (
        SESSIONS,
        SessionRecord(
            owner=OWNER,
            session_id=SESSION,
            sandbox=SANDBOX,
            phase=Phase.ACTIVE,
            spec=SessionSpec(),
            created_at=1.5,
            expires_at=None,
            idle_timeout_s=60.0,
            last_used=2.0,
            gateway="gw",
            epoch=3,
        ),
        '{"owner":"uid:0","session_id":"s","sandbox":"sb","phase":"Active","parent":null,'
        '"workspace":null,"warm":false,"detail":"","created_at":1.5,"expires_at":null,"idle_timeout_s":60.0,'
        '"last_used":2.0,"gateway":"gw","epoch":3,"spec":' + SPEC_FIELDS + "}",
    ),
    (
        RUNS,
        RunRecord(
            run_id=RunId("r"),
            owner=OWNER,
            session_id=SESSION,
            started_at=1.5,
            command="make",
            outcome=Outcome(status=Status.COMPLETED, exit_code=0),
            denied=(Denial("a.example", 443, "why"),),
        ),
        '{"run_id":"r","owner":"uid:0","session_id":"s","started_at":1.5,"command":"make","truncated":false,'
        '"outcome":{"status":"completed","exit_code":0,"signal":0,"reason":"","detail":"","duration_ms":0},'
        '"denied":[{"host":"a.example","port":443,"reason":"why"}]}',
    ),
    (
        TERMINALS,
        TerminalRecord(terminal_id=TerminalId("t"), owner=OWNER, session_id=SESSION, pid=7),
        '{"terminal_id":"t","owner":"uid:0","session_id":"s","pid":7}',
    ),
    (
        WORKSPACES,
        WorkspaceView(owner=OWNER, tenant="t", workspace=WorkspaceId("ws"), disk_bytes=1, last_used=2.0),
        '{"owner":"uid:0","tenant":"t","workspace":"ws","disk_bytes":1,"last_used":2.0,'
        '"gates":{"egress":false,"write_paths":[],"workspace":false,"secrets":false,"commands":[]}}',
    ),
    (
        APPROVALS,
        Approval(
            approval_id=ApprovalId("a"),
            owner=OWNER,
            session_id=SESSION,
            sandbox=SANDBOX,
            action="drop",
            asked_by="uid:0",
            asked_at=1.0,
            expires_at=2.0,
        ),
        '{"approval_id":"a","owner":"uid:0","session_id":"s","sandbox":"sb","action":"drop","asked_by":"uid:0",'
        '"asked_at":1.0,"expires_at":2.0,"status":"pending","decided_by":"","reason":"","decided_at":0.0,'
        '"is_gate":false}',
    ),
    (
        SECRETS,
        SecretRecord(owner=OWNER, name="n", key="k", sealed=b"\x00\xff", updated_at=1.0),
        '{"owner":"uid:0","name":"n","key":"k","sealed":"00ff","updated_at":1.0}',
    ),
]


@pytest.mark.parametrize(("kind", "record", "form"), FORMS, ids=[kind.name for kind, _, _ in FORMS])
def test_the_form_on_disk_changes_only_with_the_format(kind: Kind[Any], record: object, form: str) -> None:
    """Whoever changes one of these makes a new format of the file, with a step that brings old records into it."""
    assert kind.put(record).body == form
    assert kind.decoded(form) == record


def _shape(kind: Any) -> object:
    """What may be written of a type: its fields with theirs, down to the words of enumerations."""
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return ["optional", *(_shape(each) for each in args if each is not types.NoneType)]
    if origin is not None:
        return [origin.__name__, *(_shape(each) for each in args if each is not Ellipsis)]
    if not dataclasses.is_dataclass(kind):
        return [kind.__name__, *map(str, kind if issubclass(kind, StrEnum) else ())]
    hints = get_type_hints(kind)
    missing = dataclasses.MISSING
    return {
        each.name: [_shape(hints[each.name]), each.default is missing and each.default_factory is missing]
        for each in dataclasses.fields(kind)
    }


def _digest(contents: Contents) -> str:
    shapes = [[kind.name, _shape(type(record))] for kind, record, _ in FORMS if kind in FILES[contents]]
    if contents == "events":
        shapes = [["entry", _shape(Entry)]]
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]


FILES: dict[Contents, tuple[Kind[Any], ...]] = {
    "engine": (SESSIONS, RUNS, TERMINALS, WORKSPACES),
    "approvals": (APPROVALS,),
    "secrets": (SECRETS,),
    "events": (),
}
NEWEST_FORMAT: dict[Contents, tuple[int, str]] = {
    "engine": (6, "7ff77eeb9d8848d2"),
    "approvals": (3, "17ddbeb066313523"),
    "secrets": (2, "456fd27b26141d78"),
    "events": (1, "23560a6912fd7faa"),
}
"""How many formats each file has had, and what its records are in the last one.

Where the second has changed, so must the first: an older server would take the file for its own, and stop at the first
record that it does not know. Add a format to `FORMATS`, with a step that brings what is there into the new form.
"""


@pytest.mark.parametrize("contents", FORMATS)
def test_a_changed_record_needs_a_new_format(contents: Contents) -> None:
    assert (len(FORMATS[contents]), _digest(contents)) == NEWEST_FORMAT[contents]


def test_every_kind_is_in_a_file() -> None:
    assert {kind.name for kinds in FILES.values() for kind in kinds} == {kind.name for kind, _, _ in FORMS}


def test_another_field_another_type_and_another_word_are_another_shape() -> None:
    class Other(StrEnum):
        RED = "red"
        BLUE = "bluish"

    Other.__name__ = Colour.__name__
    inner: list[tuple[str, Any]] = [("number", int), ("words", tuple[str, ...])]
    shapes = [
        dataclasses.make_dataclass("Record", fields)
        for fields in (
            [("colour", Colour), ("inner", dataclasses.make_dataclass("Inner", inner))],
            [("colour", Other), ("inner", dataclasses.make_dataclass("Inner", inner))],
            [("colour", Colour), ("inner", dataclasses.make_dataclass("Inner", [*inner, ("new", bool)]))],
            [("colour", Colour), ("inner", dataclasses.make_dataclass("Inner", [inner[0], ("words", str)]))],
            [("colour", Colour)],
        )
    ]
    assert len({json.dumps(_shape(each)) for each in shapes}) == len(shapes)
