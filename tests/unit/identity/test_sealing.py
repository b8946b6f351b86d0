"""Sealing: what is written down says nothing, and opens only as what it was sealed as."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8e.errors import StoreFailed
from k8e.identity.sealing import FileSealer

VALUE = b"correct horse battery staple"


def test_a_value_opens_again_also_after_a_restart(tmp_path: Path) -> None:
    sealed = FileSealer(tmp_path / "key").seal(VALUE, context=b"a")
    assert FileSealer(tmp_path / "key").unseal(sealed, context=b"a") == VALUE


def test_a_sealed_value_shows_nothing_and_never_looks_the_same_twice(tmp_path: Path) -> None:
    sealer = FileSealer(tmp_path / "key")
    first, second = sealer.seal(VALUE, context=b"a"), sealer.seal(VALUE, context=b"a")
    assert first != second
    assert not any(word in first + second for word in VALUE.split())


@pytest.mark.parametrize("position", [0, 1, 12, 13, -1])
def test_a_changed_byte_is_noticed(tmp_path: Path, position: int) -> None:
    sealer = FileSealer(tmp_path / "key")
    sealed = bytearray(sealer.seal(VALUE, context=b"a"))
    sealed[position] ^= 1
    with pytest.raises(StoreFailed):
        sealer.unseal(bytes(sealed), context=b"a")


@pytest.mark.parametrize("sealed", [b"", b"\x01", b"\x01" + bytes(12), b"\x01" + bytes(40)])
def test_what_was_never_sealed_does_not_open(tmp_path: Path, sealed: bytes) -> None:
    with pytest.raises(StoreFailed):
        FileSealer(tmp_path / "key").unseal(sealed, context=b"a")


def test_a_value_does_not_open_as_another_ones(tmp_path: Path) -> None:
    sealer = FileSealer(tmp_path / "key")
    sealed = sealer.seal(VALUE, context=b"alice/token")
    with pytest.raises(StoreFailed):
        sealer.unseal(sealed, context=b"mallory/token")


def test_another_key_does_not_open_it_and_the_text_says_what_to_do(tmp_path: Path) -> None:
    sealed = FileSealer(tmp_path / "key").seal(VALUE, context=b"a")
    with pytest.raises(StoreFailed, match="right key file"):
        FileSealer(tmp_path / "other").unseal(sealed, context=b"a")


def test_the_key_file_is_its_owners_alone_and_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "key"
    FileSealer(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["key"]
    path.write_bytes(b"short")
    with pytest.raises(StoreFailed, match="not a key"):
        FileSealer(path)
