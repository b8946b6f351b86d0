"""Typed access to a request's fields: whatever the engine sends, a handler sees the right type or a refusal."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

__all__ = [
    "Refusal",
    "flag",
    "integer",
    "mapping",
    "number",
    "offsets",
    "optional_text",
    "pair",
    "refusal_of",
    "text",
    "texts",
]

_NOT_FOUND = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH)
_CONFLICT = (errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.EBUSY)
_EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


class Refusal(Exception):  # an answer, not a fault
    """The request is answered with an error: `code` is from a closed set."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def refusal_of(error: OSError) -> Refusal:
    """The answer for a failed system call: the path and the kernel's own words."""
    code = "io"
    for name, numbers in (("not_found", _NOT_FOUND), ("conflict", _CONFLICT), ("exhausted", _EXHAUSTED)):
        if error.errno in numbers:
            code = name
    where = error.filename if error.filename is not None else ""
    where = os.fsdecode(where) if isinstance(where, (str, bytes)) else ""
    return Refusal(code, "%s: %s" % (where, error.strerror) if where else str(error.strerror))


def _typed(args: Mapping[str, Any], name: str, kind: Any, default: Any) -> Any:
    value = args.get(name)
    if value is None:
        value = default
    if value is None:
        raise Refusal("invalid", "%s is missing" % name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Refusal("invalid", "%s has the wrong type" % name)
    return value


def text(args: Mapping[str, Any], name: str, default: Optional[str] = None) -> str:
    """A string without NUL."""
    value: str = _typed(args, name, str, default)
    return _plain(name, value)


def _plain(name: str, value: str) -> str:
    if "\0" in value:
        raise Refusal("invalid", "%s holds a NUL" % name)
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise Refusal("invalid", "%s is not text that Linux can hold" % name) from error
    return value


def optional_text(args: Mapping[str, Any], name: str) -> Optional[str]:
    """A string or nothing."""
    return None if args.get(name) is None else text(args, name)


def integer(args: Mapping[str, Any], name: str, default: Optional[int] = None) -> int:
    """An integer."""
    value: int = _typed(args, name, int, default)
    return value


def number(args: Mapping[str, Any], name: str, default: float) -> float:
    """A number."""
    return float(_typed(args, name, (int, float), default))


def flag(args: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """A boolean."""
    value: bool = _typed(args, name, bool, default)
    return value


def texts(args: Mapping[str, Any], name: str) -> List[str]:
    """A list of strings."""
    value = _typed(args, name, list, None)
    if not all(isinstance(item, str) for item in value):
        raise Refusal("invalid", "%s must hold strings" % name)
    return [_plain(name, item) for item in value]


def mapping(args: Mapping[str, Any], name: str) -> Dict[str, str]:
    """A dictionary of strings that can be an environment."""
    value = _typed(args, name, dict, {})
    for key, item in value.items():
        if not isinstance(item, str) or not key or "=" in key:
            raise Refusal("invalid", "%s must map names to strings" % name)
        _plain(name, key)
        _plain(name, item)
    return dict(value)


def offsets(args: Mapping[str, Any]) -> Dict[int, int]:
    """Where each channel goes on."""
    value = _typed(args, "offsets", dict, {})
    try:
        return {int(channel): int(offset) for channel, offset in value.items()}
    except (TypeError, ValueError) as error:
        raise Refusal("invalid", "offsets must map channels to numbers") from error


def pair(args: Mapping[str, Any]) -> Tuple[int, int]:
    """A terminal's rows and columns."""
    return integer(args, "rows", 24), integer(args, "cols", 80)
