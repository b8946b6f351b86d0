"""The SDK for code without an event loop: derived from the async one, never written twice."""

from k8e.client.sync.client import SandboxClient, sandbox_session
from k8e.client.sync.faces import Blocking, Iterating, Making

__all__ = ["Blocking", "Iterating", "Making", "SandboxClient", "sandbox_session"]
