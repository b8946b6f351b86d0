"""The store of secrets: whose they are, what may be asked of them, and what a file on disk tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.engine.secrets import MASK, MAX_PER_OWNER, MAX_VALUE_BYTES, SECRETS, Secrets, check_references, mask
from k8e.engine.store import Store
from k8e.engine.store.codec import decoder, encoded
from k8e.errors import Exhausted, HostUnsupported, InvalidSpec, StoreFailed
from k8e.identity.sealing import FileSealer
from k8e.model import Brokered, EgressMode, Grant, OwnerId, SecretRef, SessionSpec
from tests.support import former_files

pytestmark = pytest.mark.anyio

ALICE, MALLORY = OwnerId("alice"), OwnerId("mallory")
VALUE = b"s3cr3t-value-of-alice"


@pytest.fixture
def secrets(tmp_path: Path) -> Iterator[Secrets]:
    store = Secrets(tmp_path / "secrets.sqlite", FileSealer(tmp_path / "key"))
    yield store
    store.close()


async def test_a_secret_is_listed_by_name_and_opened_by_reference(secrets: Secrets) -> None:
    await secrets.set(ALICE, "github", "token", VALUE)
    await secrets.set(ALICE, "github", "user", b"me")
    await secrets.set(ALICE, "other", "value", b"\xff\xfe")
    assert [(view.name, view.keys) for view in secrets.list(ALICE)] == [
        ("github", ("token", "user")),
        ("other", ("value",)),
    ]
    refs = (_ref("github", "token", "TOKEN"), _ref("other", "value", "RAW"))
    assert secrets.environment(ALICE, refs) == {"TOKEN": VALUE.decode(), "RAW": "\udcff\udcfe"}


async def test_setting_anew_replaces_and_deleting_forgets(secrets: Secrets) -> None:
    await secrets.set(ALICE, "a", "x", b"one")
    await secrets.set(ALICE, "a", "x", b"two")
    await secrets.set(ALICE, "a", "y", b"three")
    assert secrets.value(ALICE, "a", "x") == b"two"
    assert await secrets.delete(ALICE, "a", "x")
    assert [view.keys for view in secrets.list(ALICE)] == [("y",)]
    assert await secrets.delete(ALICE, "a")
    assert not await secrets.delete(ALICE, "a")
    assert secrets.list(ALICE) == []


async def test_another_owners_secret_does_not_exist(secrets: Secrets) -> None:
    await secrets.set(ALICE, "a", "x", VALUE)
    assert secrets.list(MALLORY) == []
    assert not await secrets.delete(MALLORY, "a")
    with pytest.raises(InvalidSpec, match="no secret a:x"):
        secrets.value(MALLORY, "a", "x")
    assert secrets.value(ALICE, "a", "x") == VALUE


async def test_a_record_moved_to_another_owner_does_not_open(secrets: Secrets, tmp_path: Path) -> None:
    await secrets.set(ALICE, "a", "x", VALUE)
    file = Store(tmp_path / "secrets.sqlite", "secrets")
    (kept,) = file.load(SECRETS)
    await file.commit(SECRETS.put(replace(kept.record, owner=MALLORY)))
    file.close()
    assert secrets.value(ALICE, "a", "x") == VALUE, "the control"
    with pytest.raises(StoreFailed):
        secrets.value(MALLORY, "a", "x")


async def test_the_files_do_not_hold_the_value_and_are_their_owners_alone(secrets: Secrets, tmp_path: Path) -> None:
    await secrets.set(ALICE, "a-name-that-shows", "x", VALUE)
    written = b"".join(path.read_bytes() for path in tmp_path.glob("secrets.sqlite*"))
    assert b"a-name-that-shows" in written
    assert VALUE not in written
    files = sorted(tmp_path.glob("secrets.sqlite*"))
    assert [file.name for file in files] == ["secrets.sqlite", "secrets.sqlite-shm", "secrets.sqlite-wal"]
    assert [file.stat().st_mode & 0o077 for file in files] == [0, 0, 0]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../server/secrets.key", "/etc/shadow", "a/b", "a\0b", "a b", "é", "x" * 64, "a\n"]
)
async def test_a_name_is_a_word_and_never_a_path(secrets: Secrets, name: str) -> None:
    with pytest.raises(InvalidSpec):
        await secrets.set(ALICE, name, "x", VALUE)
    with pytest.raises(InvalidSpec):
        await secrets.set(ALICE, "x", name, VALUE)
    with pytest.raises(InvalidSpec):
        check_references(SessionSpec(secret_refs=(_ref(name, "x", "X"),)))
    with pytest.raises(InvalidSpec):
        secrets.value(ALICE, name, "x")


@pytest.mark.parametrize("value", [b"", b"a\0b", b"x" * (MAX_VALUE_BYTES + 1)], ids=["empty", "NUL", "too long"])
async def test_a_value_that_cannot_be_used_is_refused(secrets: Secrets, value: bytes) -> None:
    with pytest.raises(InvalidSpec):
        await secrets.set(ALICE, "a", "x", value)
    await secrets.set(ALICE, "a", "x", b"x" * MAX_VALUE_BYTES)


async def test_an_owner_may_have_so_many_and_no_more(secrets: Secrets) -> None:
    for number in range(MAX_PER_OWNER):
        await secrets.set(ALICE, "many", f"k{number}", b"v")
    with pytest.raises(Exhausted):
        await secrets.set(ALICE, "one-more", "x", b"v")
    await secrets.set(ALICE, "many", "k0", b"again")
    await secrets.set(MALLORY, "one-more", "x", b"v")


async def test_a_file_of_the_former_format_is_taken_over_and_its_secrets_open(tmp_path: Path) -> None:
    path, sealer = tmp_path / "secrets.sqlite", FileSealer(tmp_path / "key")
    raw = bytes(range(1, 256))
    sealed = sealer.seal(raw, context=json.dumps([ALICE, "github", "token"]).encode())
    row = ("INSERT INTO secrets VALUES (?,?,?,?,?)", (ALICE, "github", "token", sealed, 1763500000.1234567))
    former_files.write(path, former_files.SECRETS, row)
    for _ in range(2):
        secrets = Secrets(path, sealer)
        assert secrets.value(ALICE, "github", "token") == raw
        (view,) = secrets.list(ALICE)
        assert (view.name, view.keys, view.updated_at) == ("github", ("token",), 1763500000.1234567)
        secrets.close()
    assert path.stat().st_mode & 0o077 == 0


async def test_without_a_key_nothing_is_kept(tmp_path: Path) -> None:
    store = Secrets(tmp_path / "secrets.sqlite", None)
    with pytest.raises(HostUnsupported):
        await store.set(ALICE, "a", "x", VALUE)
    store.close()


@pytest.mark.parametrize(
    "spec",
    [
        SessionSpec(secret_refs=tuple(SecretRef(secret_name="a", key="k", env_var=f"V{n}") for n in range(33))),
        SessionSpec(secret_refs=(SecretRef(secret_name="a", key="k", env_var="1X"),)),
        SessionSpec(secret_refs=(SecretRef(secret_name="a", key="k", env_var="A=B"),)),
        SessionSpec(secret_refs=(SecretRef(secret_name="a", key="k", env_var=""),)),
        SessionSpec(secret_refs=(SecretRef(secret_name="a", key="", env_var="X"),)),
        SessionSpec(secret_refs=(SecretRef(secret_name="a", key="k", env_var="X"),) * 2),
        SessionSpec(env={"X": "1"}, secret_refs=(SecretRef(secret_name="a", key="k", env_var="X"),)),
        SessionSpec(
            secret_refs=(SecretRef(secret_name="a", key="k", env_var="X"),),
            brokered=(Brokered(secret_name="a", key="k", env_var="X", host="h.example"),),
        ),
    ],
    ids=["33 of them", "digit first", "equals sign", "no variable", "no key", "twice", "also in env", "also brokered"],
)
def test_references_that_make_no_sense_are_refused(spec: SessionSpec) -> None:
    with pytest.raises(InvalidSpec):
        check_references(spec)


def test_references_that_make_sense_are_accepted_and_come_back_from_the_store_of_sessions() -> None:
    spec = SessionSpec(
        env={"A": "1"},
        network=EgressMode.NONE,
        secret_refs=(_ref("a", "k", "B"),),
        brokered=(Brokered(secret_name="a", key="k", env_var="C", host="h.example"),),
    )
    check_references(spec)
    assert decoder(SessionSpec)(encoded(spec)) == replace(spec, env={"A": "1"})


def test_a_session_written_before_there_were_secrets_is_still_read() -> None:
    assert decoder(SessionSpec)('{"runtime": "gvisor", "limits": {}, "allowed_hosts": []}') == SessionSpec()


def test_no_printed_form_holds_a_value() -> None:
    grant = Grant(host="h.example", header="authorization", placeholder="p", value=VALUE.decode())
    assert "placeholder='p'" in repr(grant)
    assert VALUE.decode() not in repr(grant) + str(grant)


@given(before=st.binary(max_size=40), after=st.binary(max_size=40), value=st.text("01", min_size=4, max_size=20))
def test_a_masked_text_holds_no_value_wherever_it_was(before: bytes, after: bytes, value: str) -> None:
    secret = value.encode()
    assert secret not in mask(before + secret + after, [secret])
    assert mask(b"nothing here", [secret]) == b"nothing here"


@pytest.mark.parametrize("length", range(4, len(VALUE)))
def test_the_beginning_of_a_value_is_masked_where_the_text_was_cut(length: int) -> None:
    text = b"token=" + VALUE[:length]
    assert mask(text, [VALUE], was_cut=True) == b"token=" + MASK
    assert mask(text, [VALUE]) == text


def _ref(name: str, key: str, env_var: str) -> SecretRef:
    return SecretRef(secret_name=name, key=key, env_var=env_var)
