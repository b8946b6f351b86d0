"""Names and the addresses that stand for them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.egress.book import Book, is_synthetic


def test_a_name_keeps_its_address_and_the_address_leads_back() -> None:
    book = Book()
    address, is_new = book.address("one.example")
    assert is_new
    assert is_synthetic(address)
    assert book.address("one.example") == (address, False)
    assert book.name(address) == "one.example"
    assert book.address("two.example")[0] != address


@pytest.mark.parametrize("address", ["198.18.9.9", "198.20.0.1", "10.0.0.1", "", "::1", "nonsense", "198.18.0.1.1"])
def test_an_address_that_was_never_given_is_nobodys(address: str) -> None:
    book = Book()
    book.address("one.example")
    assert book.name(address) is None


def test_the_name_that_was_not_used_for_longest_goes_first() -> None:
    book = Book(limit=2)
    first, _ = book.address("first.example")
    second, _ = book.address("second.example")
    assert book.name(first) == "first.example"  # used again, so the second is the oldest
    third, _ = book.address("third.example")
    assert book.name(second) is None
    assert book.name(first) == "first.example"
    assert book.name(third) == "third.example"


def test_an_address_that_was_given_up_is_not_given_again_soon() -> None:
    book = Book(limit=2)
    seen = [book.address(f"n{number}.example")[0] for number in range(5000)]
    assert len(set(seen)) == len(seen)


def test_the_ring_of_addresses_goes_round_past_those_in_use() -> None:
    book = Book(limit=3)
    kept, _ = book.address("kept.example")
    for number in range(131_072 + 10):
        address, _ = book.address(f"n{number % 7}-{number}.example")
        assert is_synthetic(address)
        assert address != kept
        assert book.name(kept) == "kept.example"


@given(st.lists(st.text("abc.", min_size=1, max_size=4), max_size=30))
def test_a_book_comes_back_from_json_as_it_was(names: list[str]) -> None:
    book = Book(limit=8)
    for name in names:
        book.address(name)
    again = Book.from_json(json.loads(json.dumps(book.to_json())), limit=8)
    assert list(again) == list(book)
    assert [again.address(name) for name in list(book)] == [book.address(name) for name in list(book)]
    assert book.name(again.address("new.example")[0]) is None


def test_an_address_given_after_the_book_was_written_down_stands_for_nobody_afterwards() -> None:
    book = Book()
    known, _ = book.address("known.example")
    written = book.to_json()
    lost = [book.address(f"n{number}.example")[0] for number in range(1000)]
    again = Book.from_json(written)
    for number in range(1000):
        again.address(f"other{number}.example")
    assert {again.name(address) for address in lost} == {None}
    assert again.name(known) == "known.example"


def test_a_book_that_is_read_again_and_again_goes_round() -> None:
    book = Book()
    for _ in range(100):
        address, _ = book.address("one.example")
        assert book.name(address) == "one.example"
        book = Book.from_json(book.to_json())
        assert is_synthetic(book.address("another.example")[0])


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"names": {}, "next": 1},
        {"names": [], "next": 0},
        {"names": [], "next": True},
        {"names": [["a", 1], ["a", 2]], "next": 3},
        {"names": [["a", 1], ["b", 1]], "next": 3},
        {"names": [["a", 1 << 20]], "next": 3},
        {"names": [["a"]], "next": 3},
        {"names": [["", 1]], "next": 3},
    ],
)
def test_what_is_no_book_is_refused(value: dict[str, object]) -> None:
    assert len(Book.from_json({"names": [["a", 1]], "next": 2})) == 1
    with pytest.raises(ValueError, match=r"book|number"):
        Book.from_json(value)
