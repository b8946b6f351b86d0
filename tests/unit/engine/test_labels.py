"""Labels: what a key and a value may be, what a change makes of them, and what a selector selects."""

from __future__ import annotations

import dataclasses
import json

import pytest

from k8e.engine import labels
from k8e.engine.labels import SELECTORS, VALUE_BYTES
from k8e.engine.store.codec import decoder, encoded
from k8e.errors import InvalidSpec
from k8e.model import SessionSpec

LONG_PREFIX = ".".join(["a" * 62] * 4) + ".b"  # 253 characters


@pytest.mark.parametrize(
    "key", ["a", "A1", "task", "a.b_c-d", "x" * 63, "example.com/team", "a/b", f"{LONG_PREFIX}/{'x' * 63}", "1/2"]
)
def test_a_key_is_a_name_perhaps_behind_a_domain(key: str) -> None:
    labels.check({key: ""}, most=1)


@pytest.mark.parametrize(
    "key",
    [
        "", "-a", "a-", ".a", "a.", "_a", "a_", "x" * 64, "a b", "a=b", "ä", "a\n", "a\0", "/a", "a/", "a/b/c", "A.com/x",
        "-a/x", "a-/x", "a..b/x", ".a/x", "a_b/x", f"{LONG_PREFIX}c/x", "x" * 1_000_000,
    ],
)  # fmt: skip
def test_another_key_is_refused_wherever_it_stands_with_the_field_and_the_rule(key: str) -> None:
    rule = r"is no label's key: use 1-63 letters"
    for field, refused in (
        ("labels", lambda: labels.check({key: "v"}, most=9)),
        ("set", lambda: labels.changed({}, set={key: "v"}, remove=(), most=9)),
        ("remove", lambda: labels.changed({}, set={}, remove=[key], most=9)),
    ):
        with pytest.raises(InvalidSpec, match=rule) as caught:
            refused()
        assert str(caught.value).startswith(f"{field}: ")
        assert len(str(caught.value)) < 1000
    if "=" not in key:
        with pytest.raises(InvalidSpec, match=rule):
            labels.selector([f"{key}=v"])


@pytest.mark.parametrize("value", ["", "a value, with=anything / at all", "中文 😀", "é" * (VALUE_BYTES // 2)])
def test_a_value_is_any_text(value: str) -> None:
    labels.check({"k": value}, most=1)
    assert labels.selector([f"k={value}"]) == (("k", value),)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("é" * (VALUE_BYTES // 2) + "x", "longer than 256 bytes"),
        ("a\nb", "control character"),
        ("\0", "control character"),
        ("\x1b[31m", "control character"),
        ("\x7f", "control character"),
        ("\x85", "control character"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_another_value_is_refused_by_its_key_and_the_rule(value: str, rule: str) -> None:
    for refused in (
        lambda: labels.check({"k": value}, most=9),
        lambda: labels.changed({}, set={"k": value}, remove=(), most=9),
        lambda: labels.selector([f"k={value}"]),
    ):
        with pytest.raises(InvalidSpec, match=rf"^(labels|set)\[k\]: .*{rule}"):
            refused()


def test_a_change_sets_and_removes_and_leaves_the_rest() -> None:
    before = {"a": "1", "b": "2", "c": "3"}
    assert labels.changed(before, set={"b": "new", "d": "4"}, remove=["c", "none"], most=3) == {
        "a": "1",
        "b": "new",
        "d": "4",
    }
    assert before == {"a": "1", "b": "2", "c": "3"}


def test_what_is_set_and_removed_at_once_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"^remove: a is to be set as well"):
        labels.changed({"a": "1"}, set={"a": "2"}, remove=["a"], most=9)


def test_more_than_the_bound_is_refused_with_the_setting() -> None:
    three = {"a": "", "b": "", "c": ""}
    labels.check(three, most=3)
    with pytest.raises(InvalidSpec, match=r"^labels: .* 3 labels and may have 2: .* labels_per_session"):
        labels.check(three, most=2)
    with pytest.raises(InvalidSpec, match=r"^set: .* 3 labels and may have 2: .* labels_per_session"):
        labels.changed({"a": "", "b": ""}, set={"c": ""}, remove=(), most=2)
    assert labels.changed({"a": "", "b": ""}, set={"c": ""}, remove=["a"], most=2) == {"b": "", "c": ""}
    with pytest.raises(InvalidSpec, match=r"^remove: "):
        labels.changed({}, set={}, remove=["a", "b", "c"], most=2)


def test_a_session_from_before_a_lower_bound_can_be_changed_but_gets_no_more() -> None:
    before = {"a": "", "b": "", "c": ""}
    assert labels.changed(before, set={"a": "new"}, remove=["b"], most=1) == {"a": "new", "c": ""}
    with pytest.raises(InvalidSpec, match="labels_per_session"):
        labels.changed(before, set={"d": ""}, remove=(), most=1)


@pytest.mark.parametrize(
    ("texts", "is_selected"),
    [
        ([], True),
        (["env=prod"], True),
        (["env"], True),
        (["empty"], True),
        (["empty="], True),
        (["formula=a=b"], True),
        (["env=prod", "empty", "formula=a=b"], True),
        (["env=test"], False),
        (["env="], False),
        (["other"], False),
        (["env=prod", "other"], False),
        (["env=prod", "env=test"], False),
        (["ENV=prod"], False),
    ],
)
def test_a_selector_wants_every_pair_and_every_key(texts: list[str], is_selected: bool) -> None:
    held = {"env": "prod", "empty": "", "formula": "a=b"}
    assert labels.has_all(held, labels.selector(texts)) is is_selected


def test_a_selector_is_bounded() -> None:
    labels.selector(["k"] * SELECTORS)
    with pytest.raises(InvalidSpec, match=r"^labels: has more than 64 entries"):
        labels.selector(["k"] * (SELECTORS + 1))


def test_labels_are_kept_and_a_record_from_before_them_has_none() -> None:
    spec = SessionSpec(labels={"env": "prod", "note": "中文"})
    assert decoder(SessionSpec)(encoded(spec)) == spec
    former = json.loads(encoded(spec))
    del former["labels"]
    assert decoder(SessionSpec)(json.dumps(former)) == dataclasses.replace(spec, labels={})
