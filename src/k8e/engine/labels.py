"""Labels of sessions: pairs by which their owner finds them again. They grant nothing. Everything here is pure.

A key is like Kubernetes': a name, before it perhaps the domain of whoever gave it (`example.com/team`). A value is free text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from k8e.errors import InvalidSpec

__all__ = ["Selector", "changed", "check", "has_all", "selector"]

Selector = tuple[str, str | None]
"""A key and the value that it has to have; None is any."""

VALUE_BYTES: Final = 256
SELECTORS: Final = 64
"""In one request."""
_SHOWN: Final = 80

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_PREFIX_CHARS: Final = 253


def check(labels: Mapping[str, str], *, most: int, field: str = "labels") -> None:
    """Whether a session may have these. Raises: InvalidSpec with the rule."""
    _check_count(len(labels), most, field)
    for key, value in labels.items():
        _check_key(key, field)
        _check_value(value, f"{field}[{key}]")


def changed(labels: Mapping[str, str], *, set: Mapping[str, str], remove: Sequence[str], most: int) -> dict[str, str]:
    """The labels with some set and others removed, which need not be there. Raises: InvalidSpec."""
    # A session from before a lower bound may have more; it gets none besides them.
    most = max(most, len(labels))
    check(set, most=most, field="set")
    if len(remove) > most:
        raise InvalidSpec(f"names more than the {most} labels that a session may have", field="remove")
    for key in remove:
        _check_key(key, "remove")
        if key in set:
            raise InvalidSpec(f"{key} is to be set as well: name it once", field="remove")
    new = {**{key: value for key, value in labels.items() if key not in remove}, **set}
    _check_count(len(new), most, "set")
    return new


def selector(texts: Sequence[str], field: str = "labels") -> tuple[Selector, ...]:
    """What `key=value` and `key` select: sessions with that pair, or with that key. Raises: InvalidSpec."""
    if len(texts) > SELECTORS:
        raise InvalidSpec(f"has more than {SELECTORS} entries", field=field)
    found = list[Selector]()
    for text in texts:
        key, equals, value = text.partition("=")
        _check_key(key, field)
        if equals:
            _check_value(value, f"{field}[{key}]")
        found.append((key, value if equals else None))
    return tuple(found)


def has_all(labels: Mapping[str, str], wanted: Iterable[Selector]) -> bool:
    return all(key in labels and value in (None, labels[key]) for key, value in wanted)


def _check_count(count: int, most: int, field: str) -> None:
    if count > most:
        raise InvalidSpec(
            f"the session would have {count} labels and may have {most}: leave some out, or have the server's operator "
            "raise labels_per_session",
            field=field,
        )


def _check_key(key: str, field: str) -> None:
    prefix, slash, name = key.rpartition("/")
    is_prefix = len(prefix) <= _PREFIX_CHARS and _PREFIX.fullmatch(prefix)
    if not _NAME.fullmatch(name) or (slash and not is_prefix):
        raise InvalidSpec(
            f"{key[:_SHOWN]!r} is no label's key: use 1-63 letters, digits, '.', '_' or '-', beginning and ending with a "
            f"letter or digit; before it there may be a domain of at most {_PREFIX_CHARS} characters and '/'",
            field=field,
        )


def _check_value(value: str, field: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidSpec("is not UTF-8", field=field) from None
    if size > VALUE_BYTES:
        raise InvalidSpec(f"is longer than {VALUE_BYTES} bytes", field=field)
    if any(unicodedata.category(character) == "Cc" for character in value):
        raise InvalidSpec("contains a control character", field=field)
