"""Somebody whom the agents' HTTP door has let in: what that door and the agents behind it both know."""

from __future__ import annotations

from dataclasses import dataclass

from k8e.client.aio import AsyncSandboxClient
from k8e.client.mcp import McpCalls

__all__ = ["Visitor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Somebody who may come in."""

    client: AsyncSandboxClient
    """Acts as the visitor. It is the door's: never close it."""
    identity: str
    owner: str
    role: str
    """user, approver or admin."""
    mcp: McpCalls
    """Acts as the visitor, too."""
