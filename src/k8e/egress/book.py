"""One sandbox's names, each with an address of its own, so that an address leads back to exactly one name.

Addresses come from 198.18.0.0/15 in a ring, so one that was given up means nothing for as long as possible.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

__all__ = ["LIMIT", "Book", "is_synthetic"]

LIMIT = 4096
"""Names kept; the one that was not used for longest goes."""

_NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
_BASE = int(_NETWORK.network_address)
_FIRST, _LAST = 1, _NETWORK.num_addresses - 2
_LONGEST_NAME = 253


def is_synthetic(address: str) -> bool:
    """Whether an address could be one of a book's, of whatever sandbox."""
    return address.startswith(("198.18.", "198.19."))


class Book:
    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._numbers: dict[str, int] = {}
        """By name, the one used last at the end."""
        self._names: dict[int, str] = {}
        self._next = _FIRST

    def address(self, name: str) -> tuple[str, bool]:
        """A name's address, and whether it is new."""
        number = self._numbers.pop(name, None)
        is_new = number is None
        if number is None:
            number = self._free_number()
            self._names[number] = name
        self._numbers[name] = number
        return str(ipaddress.IPv4Address(_BASE + number)), is_new

    def name(self, address: str) -> str | None:
        """Whose address it is; None when it is nobody's here."""
        try:
            number = int(ipaddress.IPv4Address(address)) - _BASE
        except ValueError:
            return None
        name = self._names.get(number)
        if name is not None:
            self._numbers[name] = self._numbers.pop(name)
        return name

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def to_json(self) -> dict[str, object]:
        return {"next": self._next, "names": [[name, number] for name, number in self._numbers.items()]}

    @classmethod
    def from_json(cls, value: Mapping[str, object], limit: int = LIMIT) -> Book:
        """Raises: ValueError when this is no book."""
        book = cls(limit)
        names = value.get("names")
        if not isinstance(names, list):
            raise ValueError("a book has names")  # noqa: TRY004 - wrong content, whatever its type
        for entry in names[-limit:]:
            name, number = _entry(entry)
            if name in book._numbers or number in book._names:
                raise ValueError(f"twice in one book: {name!r} or its number {number}")
            book._numbers[name] = number
            book._names[number] = name
        # The latest names may not have been written down: an address that one of them had must not stand for another.
        book._next = (_number(value.get("next")) + LIMIT) % _LAST or _LAST
        return book

    def _free_number(self) -> int:
        while len(self._names) >= self._limit:
            oldest = next(iter(self._numbers))
            del self._names[self._numbers.pop(oldest)]
        while self._next in self._names:
            self._advance()
        number = self._next
        self._advance()
        return number

    def _advance(self) -> None:
        self._next = self._next + 1 if self._next < _LAST else _FIRST


def _entry(value: object) -> tuple[str, int]:
    match value:
        case [str(name), number] if name and len(name) <= _LONGEST_NAME:
            return name, _number(number)
    raise ValueError("an entry of a book is a name and a number")


def _number(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and _FIRST <= value <= _LAST:
        return value
    raise ValueError(f"no number of an address: {value!r}")
