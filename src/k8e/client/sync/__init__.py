"""The SDK for code without an event loop: derived from the async one, never written twice."""

from k8e.client.sync.client import SandboxClient, sandbox_session
from k8e.client.sync.faces import Blocking, Iterating, Making
from k8e.client.sync.session import Forward, PortConnection, Process, Run, Session, Terminal

__all__ = [
    "Blocking",
    "Forward",
    "Iterating",
    "Making",
    "PortConnection",
    "Process",
    "Run",
    "SandboxClient",
    "Session",
    "Terminal",
    "sandbox_session",
]
