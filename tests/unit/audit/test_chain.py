"""The chain itself: whatever is done to its lines, the first one that is wrong is found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from k8e.audit.chain import BEGIN, Broken, End, Fields, Head, check, head_text, read_head, sealed

KEY, OTHER_KEY = b"k" * 32, b"o" * 32

scalars = st.text(max_size=20) | st.integers(-(2**53), 2**53) | st.booleans() | st.floats(allow_nan=False, width=32)
names = st.text(max_size=10).filter(lambda name: name not in {"seq", "prev", "hash", "seal"})
entries = st.lists(st.dictionaries(names, scalars, max_size=4), min_size=1, max_size=8)


def _chain(entries: Sequence[Fields], *, key: bytes = KEY, after: End = BEGIN) -> list[bytes]:
    lines = []
    for fields in entries:
        line, after = sealed(fields, after=after, key=key)
        lines.append(line)
    return lines


def _end(lines: Sequence[bytes], *, key: bytes = KEY, after: End = BEGIN) -> End:
    for line in lines:
        after = check(line, after=after, key=key)
    return after


@given(entries)
def test_what_was_written_is_whole(entries: list[Fields]) -> None:
    assert _end(_chain(entries)).seq == len(entries)


@given(entries, st.data())
def test_any_change_of_any_byte_is_found(entries: list[Fields], data: st.DataObject) -> None:
    lines = _chain(entries)
    index = data.draw(st.integers(0, len(lines) - 1))
    at = data.draw(st.integers(0, len(lines[index]) - 1))
    byte = data.draw(st.integers(0, 255))
    changed = lines[index][:at] + bytes([byte]) + lines[index][at + 1 :]
    assume(changed != lines[index])
    lines[index] = changed
    with pytest.raises(Broken):
        _end(lines)


@given(entries, st.data())
def test_a_record_that_is_missing_doubled_or_moved_is_found(entries: list[Fields], data: st.DataObject) -> None:
    lines = _chain([*entries, {}])
    index = data.draw(st.integers(0, len(lines) - 2))
    moved = data.draw(st.permutations(lines).filter(lambda order: order != lines))
    for wrong in (lines[:index] + lines[index + 1 :], [*lines[:index], lines[index], *lines[index:]], moved):
        with pytest.raises(Broken):
            _end(wrong)


@given(entries, st.dictionaries(names, scalars, max_size=3))
def test_nobody_without_the_key_continues_it(entries: list[Fields], forged: Fields) -> None:
    lines = _chain(entries)
    after = _end(lines)
    good, _ = sealed(forged, after=after, key=KEY)
    bad, _ = sealed(forged, after=after, key=OTHER_KEY)
    assert _end([*lines, good]).seq == len(entries) + 1
    with pytest.raises(Broken, match="forged"):
        _end([*lines, bad])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"null\n",
        b"[]\n",
        b'{"seq":1}\n',
        b'{"seq":true,"hash":"","seal":""}\n',
        b"{" * 100_000,
        b'{"seq":' + b"9" * 5000 + b"}",
        b"\xff\n",
        '{"seq":1,"hash":"é","seal":"é"}\n'.encode(),
    ],
)
def test_garbage_is_refused_and_never_an_accident(line: bytes) -> None:
    with pytest.raises(Broken):
        check(line, after=BEGIN, key=KEY)


def test_a_thing_cannot_be_said_twice_in_one_record() -> None:
    line, _ = sealed({"rpc": "Exec"}, after=BEGIN, key=KEY)
    with pytest.raises(Broken, match="altered"):
        check(line.replace(b"{", b'{"rpc":"DestroySession",', 1), after=BEGIN, key=KEY)
    assert check(line, after=BEGIN, key=KEY).seq == 1


def test_the_reason_names_what_happened() -> None:
    lines = _chain([{"n": number} for number in range(5)])
    with pytest.raises(Broken, match="record 2 is missing"):
        _end([lines[0], lines[2]])
    with pytest.raises(Broken, match="records 2 to 4 are missing"):
        _end([lines[0], lines[4]])
    with pytest.raises(Broken, match="out of order"):
        _end([lines[0], lines[1], lines[0]])
    with pytest.raises(Broken, match="altered"):
        _end([lines[0].replace(b'"n":0', b'"n":7')])


def test_a_head_is_known_by_its_seal() -> None:
    head = Head(begins=End(3, "a" * 64), ends=End(9, "b" * 64))
    text = head_text(head, KEY).encode()
    assert read_head(text, KEY) == head
    for wrong in (text.replace(b"9", b"8"), head_text(head, OTHER_KEY).encode(), b"", b"{}", b"[]"):
        with pytest.raises(Broken):
            read_head(wrong, KEY)
