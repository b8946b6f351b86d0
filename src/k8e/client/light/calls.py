"""The seam between commands and transports: requests and answers as JSON, by the names of the proto file.

Bytes travel as base64 text, whole numbers of 64 bits as text, and what has its default may be left out: `Answer`
reads all of that. A transport raises the errors of `k8e.client.errors` and nothing else.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from k8e.client.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    SandboxError,
    SandboxLost,
    ServerFailed,
    Unreachable,
    rebuilt,
)

__all__ = [
    "CREATE_S",
    "ERROR_KEY",
    "MARGIN_S",
    "MESSAGE_BYTES",
    "PERSON_S",
    "QUICK_S",
    "Answer",
    "Calls",
    "Duplex",
    "Request",
    "after_loss",
    "deadline",
    "encoded",
    "exact",
    "given",
    "listed",
    "new_exec_id",
    "only",
    "refusal",
    "unreachable",
]

QUICK_S = 60.0
"""For calls that only look or change something small."""
CREATE_S = 300.0
"""A cold start in a long queue; a warm one takes milliseconds."""
MARGIN_S = 15.0
"""What a call may take beyond the command's own time."""
PERSON_S = 330.0
"""What a person may take, where a call comes to a gate of its session: the server gives them 300."""
MESSAGE_BYTES = 64 * 1024 * 1024
"""The largest message that either side takes."""

LISTED = 1_000_000
"""Of one list; who has more asks for parts of it."""

ERROR_KEY = "k8e-error"
RETRY_KEY = "k8e-retry-after-s"
APPROVAL_KEY = "k8e-approval-id"

Request = Mapping[str, object]

T = TypeVar("T")


class Answer:
    """One message from the server; a field that it left out has its default."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def names(self) -> list[str]:
        return list(self._fields)

    def has(self, name: str) -> bool:
        return name in self._fields

    def text(self, name: str) -> str:
        return str(self._fields.get(name, ""))

    def number(self, name: str) -> int:
        return self._read(name, int, 0)

    def decimal(self, name: str) -> float:
        return self._read(name, float, 0.0)

    def flag(self, name: str) -> bool:
        return self._fields.get(name, False) is True

    def data(self, name: str) -> bytes:
        return self._read(name, binascii.a2b_base64, b"")

    def texts(self, name: str) -> list[str]:
        return [str(each) for each in self._list(name)]

    def one(self, name: str) -> Answer:
        found = self._fields.get(name)
        return Answer(found if isinstance(found, dict) else {})

    def each(self, name: str) -> list[Answer]:
        return [Answer(each) for each in self._list(name) if isinstance(each, dict)]

    def pairs(self, name: str) -> dict[str, str]:
        found = self._fields.get(name)
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def _read(self, name: str, kind: Callable[[str], T], default: T) -> T:
        if name not in self._fields:
            return default
        try:
            return kind(str(self._fields[name]))
        except ValueError as error:
            raise ServerFailed(f"the server's answer has something else than expected in {name}") from error

    def _list(self, name: str) -> list[object]:
        found = self._fields.get(name)
        return found if isinstance(found, list) else []


class Duplex(Protocol):
    """A call while it runs. One thread may send while another one reads."""

    def send(self, request: Request) -> None:
        """Waits while the server is slow to take it. Raises: SandboxError when it takes nothing any more."""

    def finish(self) -> None:
        """Say that nothing more will be sent. Raises: SandboxError."""

    def answers(self) -> Iterator[Answer]:
        """Everything until the server ends the call; by one thread, once. Raises: SandboxError."""

    def cancel(self) -> None:
        """Give the call up: whoever waits on it wakes."""


class Calls(Protocol):
    """One server, reached in one way."""

    def unary(self, rpc: str, request: Request, *, timeout_s: float | None = QUICK_S) -> Answer:
        """One question, one answer."""

    def stream(
        self, rpc: str, requests: Sequence[Request] | Iterator[Request], *, timeout_s: float | None = None
    ) -> Iterator[Answer]:
        """Send the requests, yield the answers; closing the iterator cancels the call and what it started.

        An iterator of requests is read as the server takes them, and left when it stops listening.
        """

    def duplex(self, rpc: str) -> Duplex:
        """A call whose two sides talk as they like. Raises: SandboxError."""

    def close(self) -> None:
        """Let go of the connection."""


def listed(calls: Calls, rpc: str, request: Request, field: str) -> list[Answer]:
    """Everything of a list, page by page. Raises: SandboxError, also when there is no end to it."""
    found: list[Answer] = []
    token = ""
    while len(found) <= LISTED:
        answer = calls.unary(rpc, {**request, "page_token": token} if token else request)
        found += answer.each(field)
        token = answer.text("next_page_token")
        if not token:
            return found
    raise ServerFailed(f"{rpc} lists more than {LISTED} {field}: ask for a part of them")


def only(answers: Iterator[Answer]) -> Answer:
    """The one answer to a stream of requests."""
    found = next(answers, None)
    if found is None:
        raise ServerFailed("the server ended the call without an answer")
    for _ in answers:
        pass  # to the end, where an error would stand
    return found


def deadline(timeout_s: float) -> float | None:
    """How long to wait for a command that may take `timeout_s`; without a limit for one without."""
    return timeout_s + MARGIN_S if timeout_s > 0 else None


def encoded(data: str | bytes) -> str:
    """Bytes, or text that stands for bytes, as a request carries them."""
    raw = data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape")
    return binascii.b2a_base64(raw, newline=False).decode("ascii")


def exact(answer: Answer, name: str) -> str:
    """Text beside which the exact bytes stand where it had to replace some."""
    raw = answer.data(f"{name}_bytes")
    return raw.decode("utf-8", "surrogateescape") if raw else answer.text(name)


def given(requests: Iterable[T]) -> Iterator[T]:
    """A caller's requests; what cannot be read for them is the caller's error, not the connection's."""
    try:
        yield from requests
    except OSError as error:
        raise InvalidRequest(str(error)) from error


def refusal(code: str, text: str, beside: Mapping[str, str]) -> SandboxError:
    """The error that the server's words stand for, those beside the text among them."""
    retry_after_s = beside.get(RETRY_KEY, "")
    later = Answer({"s": retry_after_s}).decimal("s") if retry_after_s else None
    return rebuilt(code.upper(), beside.get(ERROR_KEY, ""), text, later, approval_id=beside.get(APPROVAL_KEY, ""))


NEVER_SENT = ("failed to connect to all addresses", "Connection refused", "DNS resolution failed")
"""How grpc says that a call did not leave this machine."""


def after_loss(lost: Unreachable, error: SandboxError) -> SandboxError:
    """What the server said of a command that was asked for before and may have run: never that it has not."""
    if isinstance(error, NotFound | SandboxLost | Conflict):
        return Unreachable(f"{lost} Asked again, the server said: {error}")
    return error


def new_exec_id() -> str:
    """A name for a command by which it can be asked for again."""
    return f"exec-{os.urandom(16).hex()}"


def unreachable(where: str, detail: str, tried: Sequence[str] = (), *, was_sent: bool = True) -> Unreachable:
    """Nobody answers there; `tried` is where an endpoint was looked for before."""
    before = f" Looked before in: {'; '.join(tried)}." if tried else ""
    remedy = Unreachable.remedy
    error = Unreachable(f"no answer from {where}: {detail}.{before} {remedy[0].upper()}{remedy[1:]}.")
    error.was_sent = was_sent and not any(words in detail for words in NEVER_SENT)
    return error
