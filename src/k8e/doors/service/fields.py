"""Fields of requests → values, each refusal naming its field.

Text that may be any bytes on Linux becomes `str` with `surrogateescape`, as the model wants it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from k8e.errors import InvalidSpec
from k8e.model import EgressMode, Language, RunId, Runtime, SessionId, TerminalId

__all__ = [
    "MESSAGE_BYTES",
    "as_bytes",
    "clean",
    "environment",
    "hosts",
    "language",
    "network",
    "number_token",
    "offset",
    "path",
    "port",
    "positive",
    "run_id",
    "runtime",
    "seconds",
    "session_id",
    "signal_number",
    "terminal_id",
    "text_and_bytes",
    "word",
]

MESSAGE_BYTES = 64 * 1024 * 1024
"""The largest message in either direction, as every generation of clients expects."""

ENV_KEYS = 64
ENV_KEY_BYTES = 256
ENV_VALUE_BYTES = 4096
ENV_TOTAL_BYTES = 32 * 1024
PATH_BYTES = 4096
WORD_CHARS = 256
HOSTS = 256
HOST_BYTES = 1024
SECONDS_MAX = 100 * 365 * 24 * 3600.0
"""A hundred years: whoever wants more wants no limit."""
OFFSET_MAX = 1 << 62
PORT_MAX = 65535

ALIASES = {
    "": Language.BASH,
    "sh": Language.BASH,
    "shell": Language.BASH,
    "python3": Language.PYTHON,
    "py": Language.PYTHON,
    "nodejs": Language.NODE,
    "js": Language.NODE,
    "javascript": Language.NODE,
    "typescript": Language.TS,
}

_WORD = re.compile(r"[^\x00-\x20\x7f/\\]+")


def as_bytes(text: str) -> bytes:
    """The bytes that a surrogateescape'd text stands for."""
    return text.encode("utf-8", "surrogateescape")


def text_and_bytes(data: bytes) -> tuple[str, bytes]:
    """For a pair of fields: the text, and the exact bytes only where the text had to replace some."""
    try:
        return data.decode("utf-8"), b""
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), data


def clean(data: str | bytes, field: str, *, limit: int) -> str:
    """Text without NUL and within bounds."""
    raw = data if isinstance(data, bytes) else data.encode("utf-8")
    if b"\0" in raw:
        raise InvalidSpec("contains a NUL byte", field=field)
    if len(raw) > limit:
        raise InvalidSpec(f"is longer than {limit} bytes", field=field)
    return raw.decode("utf-8", "surrogateescape")


def word(text: str, field: str, *, required: bool = True) -> str:
    """An identifier or label: printable, no space, no slash, bounded."""
    if not text and not required:
        return ""
    if not text:
        raise InvalidSpec("is required", field=field)
    if len(text) > WORD_CHARS or not _WORD.fullmatch(text) or text in {".", ".."}:
        raise InvalidSpec(f"use 1-{WORD_CHARS} printable characters without spaces or slashes", field=field)
    return text


def session_id(text: str, field: str = "session_id") -> SessionId:
    return SessionId(word(text, field))


def run_id(text: str) -> RunId:
    return RunId(word(text, "run_id"))


def terminal_id(text: str) -> TerminalId:
    return TerminalId(word(text, "terminal_id"))


def path(text: str, raw: bytes, field: str = "path", *, default: str = "") -> str:
    """A path from its text field or the bytes field beside it."""
    value = clean(raw or text, field, limit=PATH_BYTES)
    if not value and not default:
        raise InvalidSpec("is required", field=field)
    return value or default


def environment(env: Mapping[str, str] | Mapping[str, bytes], field: str = "env") -> dict[str, str]:
    """Variables within the documented limits."""
    if len(env) > ENV_KEYS:
        raise InvalidSpec(f"has more than {ENV_KEYS} variables", field=field)
    values = {_key(key, field): clean(value, f"{field}[{key}]", limit=ENV_VALUE_BYTES) for key, value in env.items()}
    if sum(len(as_bytes(key)) + len(as_bytes(value)) for key, value in values.items()) > ENV_TOTAL_BYTES:
        raise InvalidSpec(f"is larger than {ENV_TOTAL_BYTES} bytes in all", field=field)
    return values


def _key(key: str, field: str) -> str:
    if not key or "=" in key:
        raise InvalidSpec(f"has a bad variable name {key!r}: it must not be empty or contain '='", field=field)
    return clean(key, field, limit=ENV_KEY_BYTES)


def hosts(names: Iterable[str], field: str = "allowed_hosts") -> tuple[str, ...]:
    listed = tuple(names)
    if len(listed) > HOSTS:
        raise InvalidSpec(f"has more than {HOSTS} names", field=field)
    # What an entry means, and why some mean nothing, is the policy's to say.
    return tuple(clean(name, field, limit=HOST_BYTES) for name in listed)


def network(text: str, default: EgressMode) -> EgressMode:
    try:
        return EgressMode(text) if text else default
    except ValueError:
        known = ", ".join(EgressMode)
        raise InvalidSpec(f"{text!r} is not one of {known}", field="network") from None


def runtime(text: str, default: Runtime) -> Runtime:
    try:
        return Runtime(text) if text else default
    except ValueError:
        known = ", ".join(Runtime)
        raise InvalidSpec(f"{text!r} is not one of {known}", field="runtime_class") from None


def language(text: str) -> Language:
    try:
        return ALIASES.get(text) or Language(text)
    except ValueError:
        known = ", ".join(Language)
        raise InvalidSpec(f"{text!r} is not one of {known}", field="language") from None


def seconds(value: float, field: str) -> float:
    """A finite number of seconds, 0 or more."""
    if not math.isfinite(value) or value < 0:
        raise InvalidSpec("must be 0 or more seconds", field=field)
    if value > SECONDS_MAX:
        raise InvalidSpec(f"is more than {SECONDS_MAX:.0f} seconds; 0 means no limit", field=field)
    return value


def positive(value: float, field: str) -> float:
    if not math.isfinite(value) or value <= 0:
        raise InvalidSpec("must be more than 0", field=field)
    return value


def offset(value: int, field: str = "offset") -> int:
    if value < 0:
        raise InvalidSpec("must be 0 or more", field=field)
    if value > OFFSET_MAX:
        raise InvalidSpec("is larger than any file or stream", field=field)
    return value


def number_token(token: bytes, field: str = "page_token") -> int:
    """A page's place that is a number; 0 is the first page."""
    if not token:
        return 0
    if not token.isdigit() or len(token) > 18:
        raise InvalidSpec("is none that an answer had", field=field)
    return int(token)


def port(value: int, field: str = "port") -> int:
    if not 0 < value <= PORT_MAX:
        raise InvalidSpec(f"must be 1-{PORT_MAX}", field=field)
    return value


def signal_number(value: int, field: str = "signal") -> int:
    """A signal, where 0 asks for the strongest."""
    if not 0 <= value <= 64:
        raise InvalidSpec("is not a signal number", field=field)
    return value or 9
