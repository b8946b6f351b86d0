"""The Python SDK: `SandboxClient`, `AsyncSandboxClient`, `sandbox_session`, and the errors they raise.

Names are loaded when they are first used: the transport costs a tenth of a second that errors and values do not need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8e.client.aio import AsyncSandboxClient
    from k8e.client.errors import (
        Conflict,
        DeadlineExceeded,
        Denied,
        Exhausted,
        InvalidRequest,
        NotFound,
        SandboxError,
        SandboxLost,
        ServerFailed,
        Unauthenticated,
        Unreachable,
        Unsupported,
    )
    from k8e.client.sync import SandboxClient, sandbox_session
    from k8e.client.values import (
        BrokeredSecret,
        Chunk,
        EgressDecision,
        EgressDenial,
        ExecResult,
        Exit,
        FileChange,
        FileInfo,
        Limits,
        ProcessInfo,
        RunInfo,
        RuntimeInfo,
        SecretInfo,
        SecretRef,
        ServerInfo,
        SessionInfo,
        WorkspaceInfo,
    )

__all__ = [
    "AsyncSandboxClient",
    "BrokeredSecret",
    "Chunk",
    "Conflict",
    "DeadlineExceeded",
    "Denied",
    "EgressDecision",
    "EgressDenial",
    "ExecResult",
    "Exhausted",
    "Exit",
    "FileChange",
    "FileInfo",
    "InvalidRequest",
    "Limits",
    "NotFound",
    "ProcessInfo",
    "RunInfo",
    "RuntimeInfo",
    "SandboxClient",
    "SandboxError",
    "SandboxLost",
    "SecretInfo",
    "SecretRef",
    "ServerFailed",
    "ServerInfo",
    "SessionInfo",
    "Unauthenticated",
    "Unreachable",
    "Unsupported",
    "WorkspaceInfo",
    "sandbox_session",
]

_HOMES = ("k8e.client.errors", "k8e.client.values", "k8e.client.aio", "k8e.client.sync")


def __getattr__(name: str) -> object:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(home)
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
