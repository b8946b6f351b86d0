"""API keys: shown once, kept as a hash, dead when deleted or expired."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from k8e.errors import Conflict, InvalidSpec, NotFound, StoreFailed
from k8e.identity import KeyRing, Role
from tests.support.door import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(tmp_path: Path, clock: Clock) -> KeyRing:
    return KeyRing(tmp_path / "apikeys.json", clock=clock)


def test_a_key_is_found_by_its_text_in_every_form_and_by_no_other(keys: KeyRing) -> None:
    made, text = keys.create("laptop")
    assert (len(text), made.owner, made.role) == (64, "key:laptop", Role.USER)
    assert [keys.with_text(form) for form in (text, f"e2b_{text}", f"k8e-{text}", text.upper())] == [made] * 4
    wrong = ["", "e2b_", text[:-1], f"{text}0", f"k8e-e2b_{text}", "0" * 64, made.digest, made.key_id, "laptop"]
    assert [keys.with_text(form) for form in wrong] == [None] * len(wrong)


def test_the_file_holds_no_text_and_is_nobody_elses(keys: KeyRing, tmp_path: Path) -> None:
    _, text = keys.create("laptop")
    path = tmp_path / "apikeys.json"
    assert text not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["apikeys.json"]


def test_keys_are_there_after_a_restart(keys: KeyRing, tmp_path: Path, clock: Clock) -> None:
    made, text = keys.create("phone", role=Role.APPROVER, owner="uid:1000", ttl_s=60)
    assert KeyRing(tmp_path / "apikeys.json", clock=clock).with_text(text) == made


def test_an_expired_key_is_listed_and_opens_nothing(keys: KeyRing, clock: Clock) -> None:
    made, text = keys.create("short", ttl_s=60)
    lasting, other = keys.create("lasting")
    assert keys.with_text(text) == keys.with_id(made.key_id) == made
    clock.ahead_s = 61
    assert keys.with_text(text) is keys.with_id(made.key_id) is None
    assert keys.with_text(other) == lasting
    assert [(each.name, keys.is_expired(each)) for each in keys.listed()] == [("lasting", False), ("short", True)]


def test_a_name_given_again_is_another_key(keys: KeyRing) -> None:
    first, text = keys.create("laptop")
    with pytest.raises(Conflict):
        keys.create("laptop")
    assert keys.delete("laptop") == first
    second, _ = keys.create("laptop")
    assert keys.with_text(text) is keys.with_id(first.key_id) is None
    assert keys.with_id(second.key_id) == second
    with pytest.raises(NotFound):
        keys.delete("other")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "a\0", "ä", "-a", "x" * 65, "a\n"])
def test_a_name_is_plain(keys: KeyRing, name: str) -> None:
    with pytest.raises(InvalidSpec, match="name"):
        keys.create(name)
    assert keys.create("x" * 64)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"keys": [{}]}', '{"keys": [{"role": "king"}]}', "\xff"])
def test_a_file_that_is_not_ours_stops_the_server_instead_of_losing_keys(
    tmp_path: Path, clock: Clock, text: str
) -> None:
    (tmp_path / "apikeys.json").write_text(text)
    with pytest.raises(StoreFailed, match=r"apikeys\.json"):
        KeyRing(tmp_path / "apikeys.json", clock=clock)
    assert (tmp_path / "apikeys.json").read_text() == text


def test_a_key_that_cannot_be_kept_is_not_given(tmp_path: Path, clock: Clock) -> None:
    keys = KeyRing(tmp_path / "missing" / "apikeys.json", clock=clock)
    with pytest.raises(StoreFailed):
        keys.create("laptop")
    assert keys.listed() == []
    (tmp_path / "missing").mkdir()
    assert keys.create("laptop")
