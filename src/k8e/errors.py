"""Every error that crosses a room's border, named by what its reader can do next.

    K8eError
    ├── InvalidSpec        fix the request
    ├── NotFound           it does not exist, or belongs to somebody else
    ├── Conflict           the state of things forbids it; look, then decide
    ├── Unauthenticated    show who you are: no credential, or one that is not good
    ├── Denied             this identity may not do this
    ├── Exhausted          a stated limit is reached; free something or retry later
    ├── HostUnsupported    fix the host (the text says how)
    ├── SandboxFailed      we could not build or reach the sandbox
    │   ├── SandboxUnreachable   its agent does not answer now; it may run: try again
    │   └── SandboxLost    it was there and died; its work is gone
    └── StoreFailed        the server's own state cannot be read or written
        └── DiskFull       free space on the server's disk

An exit code is a result, never an error.
"""

from __future__ import annotations

__all__ = [
    "Conflict",
    "Denied",
    "DiskFull",
    "Exhausted",
    "HostUnsupported",
    "InvalidSpec",
    "K8eError",
    "NotFound",
    "SandboxFailed",
    "SandboxLost",
    "SandboxUnreachable",
    "StoreFailed",
    "Unauthenticated",
]


class K8eError(Exception):
    """The root: one `except` catches everything k8e raises on purpose."""


class InvalidSpec(K8eError):
    """The request itself is wrong; `field` names the part to fix."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class NotFound(K8eError):
    """No such object for this caller."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} not found")
        self.kind = kind
        self.name = name


class Conflict(K8eError):
    """The object exists but is in a state that forbids the request."""


class Unauthenticated(K8eError):
    """Nobody knows who is calling."""


class Denied(K8eError):
    """The caller is known but may not do this; where a person was asked, `approval_id` is the question."""

    def __init__(self, message: str, *, approval_id: str = "") -> None:
        super().__init__(message)
        self.approval_id = approval_id


class Exhausted(K8eError):
    """A stated limit is reached."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class HostUnsupported(K8eError):
    """This machine lacks something; the text names it and the fix."""


class SandboxFailed(K8eError):
    """A step of building or reaching a sandbox failed; `step` names it."""

    def __init__(self, step: str, cause: object = "") -> None:
        super().__init__(f"{step}: {cause}" if cause else step)
        self.step = step


class SandboxUnreachable(SandboxFailed):
    """Its agent does not answer now. It may run, and so may what was started in it."""


class SandboxLost(SandboxFailed):
    """The sandbox died under the call."""


class StoreFailed(K8eError):
    """The server's own state is unreadable, locked or full."""


class DiskFull(StoreFailed):
    """The server's disk has no room; the text names the directory and the remedy."""

    def __init__(self, directory: str, detail: str = "") -> None:
        super().__init__(
            f"the server's disk is full: free space on the disk of {directory}" + (f" ({detail})" if detail else "")
        )
        self.directory = directory
