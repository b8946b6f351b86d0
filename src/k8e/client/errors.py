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

from typing import ClassVar

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

    remedy: ClassVar[str] = "look at the text; this client may be older than the server"
    """What to do next; tracebacks show it below the error."""


class InvalidRequest(SandboxError):
    """An argument is wrong; the text names it."""

    remedy: ClassVar[str] = "fix the argument that the text names"


class NotFound(SandboxError):
    """No such session, run, terminal, file or workspace for this caller."""

    remedy: ClassVar[str] = "it never was, has ended, or is somebody else's: list what there is, or create another"


class Conflict(SandboxError):
    """The object exists but is in a state that forbids the request."""

    remedy: ClassVar[str] = "look at the state it is in, then decide"


class Denied(SandboxError):
    """The caller is known but may not do this."""

    remedy: ClassVar[str] = "ask as an identity that may do this; `whoami()` says who you are"

    approval_id: str = ""
    """The question, where the call waited for a person who said no, or nothing."""


class Unauthenticated(Denied):
    """The server does not know who is calling."""

    remedy: ClassVar[str] = "set K8E_SANDBOX_APIKEY, give api_key=, or log in again"


class Exhausted(SandboxError):
    """A stated limit is reached."""

    remedy: ClassVar[str] = "free something, or try again after `retry_after_s` seconds"

    retry_after_s: float | None = None
    """When trying again makes sense, where the server knows."""


class Unsupported(SandboxError):
    """This server or its host cannot do it."""

    remedy: ClassVar[str] = "the text says what is missing; `k8e doctor` on the server's machine says how to get it"


class SandboxLost(SandboxError):
    """The sandbox died under the call."""

    remedy: ClassVar[str] = "create another session; what was only in this one is gone"


class Unreachable(SandboxError):
    """Nothing answers at the endpoint."""

    remedy: ClassVar[str] = "start a server with `k8e server`, or set K8E_SANDBOX_ENDPOINT to host:port of one"

    was_sent: bool = True
    """Whether the call may have reached the server before the connection was lost."""


class DeadlineExceeded(SandboxError):
    """No answer in time."""

    remedy: ClassVar[str] = "give a longer timeout, or look at what the session is doing with `processes`"


class ServerFailed(SandboxError):
    """The server's own failure."""

    remedy: ClassVar[str] = "see the server's log; trying again may help"


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


def rebuilt(
    code: str, word: str, text: str, retry_after_s: float | None = None, *, approval_id: str = ""
) -> SandboxError:
    """The error that a status stands for; an unknown one is the root class."""
    error = (BY_WORD.get(word) or BY_CODE.get(code) or SandboxError)(text)
    if isinstance(error, Exhausted):
        error.retry_after_s = retry_after_s
    if isinstance(error, Denied):
        error.approval_id = approval_id
    error.add_note(error.remedy)
    return error
