"""Errors of ours ↔ status codes: one table, with a word beside the code where one code serves two errors.

The codes are gRPC's, by name, which the Connect protocol shares. The word travels beside them as `k8e-error`; a client
looks it up in a fixed table and never imports anything by it.
"""

from __future__ import annotations

import asyncio

from k8e import errors

__all__ = ["APPROVAL_KEY", "ERROR_KEY", "RETRY_KEY", "TABLE", "Answer", "answer_for", "outcome", "single"]

ERROR_KEY = "k8e-error"
RETRY_KEY = "k8e-retry-after-s"
APPROVAL_KEY = "k8e-approval-id"
"""The question that a person answered with no, or not at all."""
TEXT_CHARS = 1000
"""In the worst case 12 kB on the way, of the 16 that clients take."""

# FAILED_PRECONDITION and UNAVAILABLE make clients throw their session away and create another, so only a session
# that is really lost may answer with one of them.
TABLE: dict[type[errors.K8eError], tuple[str, str]] = {
    errors.InvalidSpec: ("INVALID_ARGUMENT", "invalid"),
    errors.NotFound: ("NOT_FOUND", "not_found"),
    errors.Conflict: ("ABORTED", "conflict"),
    errors.Unauthenticated: ("UNAUTHENTICATED", "unauthenticated"),
    errors.Denied: ("PERMISSION_DENIED", "denied"),
    errors.Exhausted: ("RESOURCE_EXHAUSTED", "exhausted"),
    errors.HostUnsupported: ("UNIMPLEMENTED", "unsupported"),
    errors.SandboxLost: ("UNAVAILABLE", "sandbox_lost"),
    errors.SandboxFailed: ("INTERNAL", "sandbox_failed"),
    errors.StoreFailed: ("INTERNAL", "store_failed"),
    errors.DiskFull: ("RESOURCE_EXHAUSTED", "exhausted"),
    errors.K8eError: ("INTERNAL", "internal"),
}

Answer = tuple[str, str, tuple[tuple[str, str], ...]]


def answer_for(error: errors.K8eError) -> Answer:
    """Code, text and trailing metadata for an error."""
    code, word = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    trailing = [(ERROR_KEY, word)]
    if isinstance(error, errors.Exhausted) and error.retry_after_s is not None:
        trailing.append((RETRY_KEY, f"{error.retry_after_s:.3f}"))
    if isinstance(error, errors.Denied) and error.approval_id:
        trailing.append((APPROVAL_KEY, error.approval_id))
    return code, printable(str(error)), tuple(trailing)


def outcome(error: BaseException | None) -> str:
    """How a call ended, by the name of its code."""
    match error:
        case None:
            return "OK"
        case errors.K8eError():
            return answer_for(error)[0]
        case asyncio.CancelledError():
            return "CANCELLED"
        case _:
            return "INTERNAL"


def single(error: BaseException) -> BaseException:
    """The one error inside a group of one, because task groups wrap what their children raise."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def printable(text: str) -> str:
    """Status text must be UTF-8, and fit where it travels; names with other bytes are shown, not sent."""
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return shown if len(shown) <= TEXT_CHARS else f"{shown[:TEXT_CHARS]}…"
