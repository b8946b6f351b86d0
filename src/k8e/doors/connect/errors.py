"""Errors of ours → what the Connect protocol says: a word, an HTTP status, and metadata beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from k8e.doors.service.errors import answer_for
from k8e.errors import K8eError

__all__ = ["STATUSES", "Failure", "failure_for"]

STATUSES = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "out_of_range": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "data_loss": 500,
    "unauthenticated": 401,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """How a call went wrong, in the words of the protocol."""

    code: str
    message: str
    metadata: tuple[tuple[str, str], ...] = ()
    http: int = 0
    """An HTTP status that says more than the code's own; 0 takes that one."""

    @property
    def status(self) -> int:
        return self.http or STATUSES[self.code]

    def shown(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message}

    def body(self) -> bytes:
        return json.dumps(self.shown()).encode()


def failure_for(error: K8eError) -> Failure:
    code, text, metadata = answer_for(error)
    return Failure("canceled" if code == "CANCELLED" else code.lower(), text, metadata)
