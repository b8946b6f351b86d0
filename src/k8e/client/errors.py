"""What the SDK raises, named by what its reader can do next.

    SandboxError
    ├── InvalidRequest      fix the argument that the text names
    ├── NotFound            it does not exist, has expired, or belongs to somebody else
    ├── Conflict            the state of things forbids it; look, then decide
    ├── Denied              this identity may not do this
    │   └── Unauthenticated the server does not know who is calling
    ├── Exhausted           a stated limit is reached; free something or retry after `retry_after_s`
    ├── Unsupported         this server or its host cannot do it; the text says what is missing
    ├── SandboxLost         the sandbox died; its work is gone; create another session
    ├── Unreachable         nothing answers; the text lists what was tried
    ├── DeadlineExceeded    no answer in time
    └── ServerFailed        the server's own failure; see its log

A command that fails is a result, never an error.
"""

from __future__ import annotations

__all__ = [
    "BY_CODE",
    "BY_WORD",
    "Conflict",
    "DeadlineExceeded",
    "Denied",
    "Exhausted",
    "InvalidRequest",
    "NotFound",
    "SandboxError",
    "SandboxLost",
    "ServerFailed",
    "Unauthenticated",
    "Unreachable",
    "Unsupported",
    "rebuilt",
]


class SandboxError(Exception):
    """The root: one `except` catches everything the SDK raises on purpose."""


class InvalidRequest(SandboxError):
    """An argument is wrong; the text names it."""


class NotFound(SandboxError):
    """No such session, run, terminal, file or workspace for this caller."""


class Conflict(SandboxError):
    """The object exists but is in a state that forbids the request."""


class Denied(SandboxError):
    """The caller is known but may not do this."""


class Unauthenticated(Denied):
    """The server does not know who is calling."""


class Exhausted(SandboxError):
    """A stated limit is reached."""

    retry_after_s: float | None = None
    """When trying again makes sense, where the server knows."""


class Unsupported(SandboxError):
    """This server or its host cannot do it."""


class SandboxLost(SandboxError):
    """The sandbox died under the call."""


class Unreachable(SandboxError):
    """Nothing answers at the endpoint."""

    was_sent: bool = True
    """Whether the call may have reached the server before the connection was lost."""


class DeadlineExceeded(SandboxError):
    """No answer in time."""


class ServerFailed(SandboxError):
    """The server's own failure."""


BY_WORD: dict[str, type[SandboxError]] = {
    "invalid": InvalidRequest,
    "not_found": NotFound,
    "conflict": Conflict,
    "denied": Denied,
    "unauthenticated": Unauthenticated,
    "exhausted": Exhausted,
    "unsupported": Unsupported,
    "sandbox_lost": SandboxLost,
    "sandbox_failed": ServerFailed,
    "store_failed": ServerFailed,
    "internal": ServerFailed,
}
"""The server's word for an error, where it sent one."""

BY_CODE: dict[str, type[SandboxError]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "OUT_OF_RANGE": InvalidRequest,
    "NOT_FOUND": NotFound,
    "ABORTED": Conflict,
    "ALREADY_EXISTS": Conflict,
    "FAILED_PRECONDITION": Conflict,
    "PERMISSION_DENIED": Denied,
    "UNAUTHENTICATED": Unauthenticated,
    "RESOURCE_EXHAUSTED": Exhausted,
    "UNIMPLEMENTED": Unsupported,
    "DATA_LOSS": SandboxLost,
    "UNAVAILABLE": Unreachable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "INTERNAL": ServerFailed,
    "UNKNOWN": ServerFailed,
}
"""gRPC's code, for servers that send no word."""


def rebuilt(code: str, word: str, text: str, retry_after_s: float | None = None) -> SandboxError:
    """The error that a status stands for; an unknown one is the root class."""
    error = (BY_WORD.get(word) or BY_CODE.get(code) or SandboxError)(text)
    if isinstance(error, Exhausted):
        error.retry_after_s = retry_after_s
    return error
