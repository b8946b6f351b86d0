"""Fields of an agent's answer → values that every door can carry: of the right type, finite and within bounds.

The agent is never trusted. What it says is read here and nowhere else: a number that is none, that is infinite or that
64 bits do not hold, a text that is no text, or more of anything than there can be is an error of that one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from k8e.errors import SandboxFailed

__all__ = [
    "INT32",
    "INT64",
    "PATH_BYTES",
    "Fields",
    "integer",
    "note",
    "optional",
    "rows",
    "seconds",
    "text",
    "texts",
    "word",
]

INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1
PATH_BYTES: Final = 4096
"""The longest path that the kernel takes."""
_EXACT: Final = 2.0**53
"""Beyond it not every whole number is a float, and JSON's readers disagree. As a time: 285 million years away."""

_WORD_BYTES: Final = 32

Fields = Mapping[str, Any]


def integer(fields: Fields, name: str, *, least: int = 0, most: int = INT64) -> int:
    """A whole number within bounds, both included. Raises: SandboxFailed."""
    value = fields.get(name)
    # A bool is an int for Python, and a float may be neither whole nor finite.
    if type(value) is not int or not least <= value <= most:
        raise _nonsense(name)
    return value


def optional(fields: Fields, name: str, *, least: int = 0, most: int = INT64, default: int = 0) -> int:
    """The same where null or nothing stands for `default`. Raises: SandboxFailed."""
    return default if fields.get(name) is None else integer(fields, name, least=least, most=most)


def seconds(fields: Fields, name: str) -> float:
    """A time of a file: a kernel's has 64 bits, so one that is only far away is brought near. Raises: SandboxFailed."""
    value = fields.get(name)
    # Compared as it is: turned into a float, a number of a thousand digits would be an error of another kind.
    if not isinstance(value, int | float) or isinstance(value, bool) or not -(2**63) <= value <= 2**63:
        raise _nonsense(name)
    return min(max(float(value), -_EXACT), _EXACT)


def text(fields: Fields, name: str, *, most_bytes: int = PATH_BYTES) -> str:
    """Text that stands for bytes (surrogateescape). Raises: SandboxFailed."""
    return _text(fields.get(name), name, most_bytes)


def word(fields: Fields, name: str) -> str:
    """A short one in ASCII, which any protocol carries as it is. Raises: SandboxFailed."""
    value = _text(fields.get(name), name, _WORD_BYTES)
    if not value.isascii():
        raise _nonsense(name)
    return value


def texts(fields: Fields, name: str, *, most: int, most_bytes: int = PATH_BYTES) -> list[str]:
    """Raises: SandboxFailed."""
    return [_text(value, name, most_bytes) for value in _list(fields, name, most)]


def rows(fields: Fields, name: str, *, most: int) -> list[Fields]:
    """A list of objects. Raises: SandboxFailed."""
    found = _list(fields, name, most)
    if not all(isinstance(each, dict) for each in found):
        raise _nonsense(name)
    return found


def note(fields: Fields, name: str, *, most: int) -> str:
    """Words for people, as far as they are words: cut, and never an error."""
    value = fields.get(name)
    words = value[:most] if isinstance(value, str) else ""
    try:
        words.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return words.encode("utf-8", "replace").decode()
    return words


def _list(fields: Fields, name: str, most: int) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list) or len(value) > most:
        raise _nonsense(name)
    return value


def _text(value: object, name: str, most_bytes: int) -> str:
    if not isinstance(value, str) or len(value) > most_bytes:
        raise _nonsense(name)
    try:
        size = len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:  # half of a pair, which no bytes are decoded to
        raise _nonsense(name) from error
    if size > most_bytes:
        raise _nonsense(name)
    return value


def _nonsense(name: str) -> SandboxFailed:
    # Not the value itself: it may be a megabyte, or a number that cannot even be written down.
    return SandboxFailed("the sandbox's agent answered nonsense", f"its {name!r}")
