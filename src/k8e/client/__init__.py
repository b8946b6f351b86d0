"""The Python SDK: `SandboxClient`, `AsyncSandboxClient`, `sandbox_session`, and the errors they raise.

Names are loaded when they are first used: the transport costs a tenth of a second that errors and values do not need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8e.client.aio import AsyncSandboxClient
    from k8e.client.discovery import Target, discover
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
    from k8e.client.people import ApiKeyInfo, Approval, Identity, LoginInfo, NewApiKey
    from k8e.client.ports import AsyncForward, AsyncPortConnection
    from k8e.client.processes import AsyncProcess
    from k8e.client.runs import AsyncRun
    from k8e.client.session import AsyncSession
    from k8e.client.sync import Forward, PortConnection, Process, Run, SandboxClient, Session, Terminal, sandbox_session
    from k8e.client.terminals import AsyncTerminal
    from k8e.client.values import (
        BrokeredSecret,
        Chunk,
        EgressDecision,
        EgressDenial,
        ExecInfo,
        ExecResult,
        Exit,
        FileChange,
        FileInfo,
        Gates,
        ImageProgress,
        Limits,
        ProcessInfo,
        RunInfo,
        RuntimeInfo,
        SecretInfo,
        SecretRef,
        ServerInfo,
        SessionInfo,
        Transferred,
        Usage,
        WorkspaceInfo,
    )

__all__ = [
    "ApiKeyInfo",
    "Approval",
    "AsyncForward",
    "AsyncPortConnection",
    "AsyncProcess",
    "AsyncRun",
    "AsyncSandboxClient",
    "AsyncSession",
    "AsyncTerminal",
    "BrokeredSecret",
    "Chunk",
    "Conflict",
    "DeadlineExceeded",
    "Denied",
    "EgressDecision",
    "EgressDenial",
    "ExecInfo",
    "ExecResult",
    "Exhausted",
    "Exit",
    "FileChange",
    "FileInfo",
    "Forward",
    "Gates",
    "Identity",
    "ImageProgress",
    "InvalidRequest",
    "Limits",
    "LoginInfo",
    "NewApiKey",
    "NotFound",
    "PortConnection",
    "Process",
    "ProcessInfo",
    "Run",
    "RunInfo",
    "RuntimeInfo",
    "SandboxClient",
    "SandboxError",
    "SandboxLost",
    "SecretInfo",
    "SecretRef",
    "ServerFailed",
    "ServerInfo",
    "Session",
    "SessionInfo",
    "Target",
    "Terminal",
    "Transferred",
    "Unauthenticated",
    "Unreachable",
    "Unsupported",
    "Usage",
    "WorkspaceInfo",
    "discover",
    "sandbox_session",
]

_HOMES = (
    "k8e.client.errors",
    "k8e.client.values",
    "k8e.client.people",
    "k8e.client.discovery",
    "k8e.client.aio",
    "k8e.client.session",
    "k8e.client.runs",
    "k8e.client.ports",
    "k8e.client.processes",
    "k8e.client.terminals",
    "k8e.client.sync",
)


def __getattr__(name: str) -> object:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(home)
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
