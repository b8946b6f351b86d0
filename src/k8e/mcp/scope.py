"""What one MCP client has made. Its sandboxes carry the client's mark in their ids, so they are found after any death.

A session that was named by the client, or is a tenant's, is the caller's own and stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets

from k8e.client import AsyncSandboxClient
from k8e.client.errors import NotFound

__all__ = ["ClientScope", "destroy_marked", "mark_of"]

MARK_CHARS = 12
OWN = "own"
"""In the id of the one session that calls use which name none."""


def mark_of(client_id: str) -> str:
    """What a client's sessions are known by; it does not give away the id, which lets a client come back."""
    return hashlib.sha256(client_id.encode()).hexdigest()[:MARK_CHARS]


async def destroy_marked(client: AsyncSandboxClient, mark: str) -> None:
    """Destroy every session whose id begins so, at once."""
    async with asyncio.TaskGroup() as group:
        for each in await client.sessions("all"):
            if each.session_id.startswith(mark):
                group.create_task(destroy(client, each.session_id), name=f"destroy {each.session_id}")


async def destroy(client: AsyncSandboxClient, session_id: str) -> None:
    with contextlib.suppress(NotFound):
        await client.destroy_session(session_id)


class ClientScope:
    """`prefix` keeps apart whose sessions they are to clean up: `mcp` are those of clients of the server itself."""

    def __init__(self, client: AsyncSandboxClient, client_id: str, *, tenant_id: str = "", prefix: str = "mcp") -> None:
        self._client = client
        self._tenant_id = tenant_id
        self._mark = f"{prefix}-{mark_of(client_id)}-"
        self._own = ""
        self._making = asyncio.Lock()

    def holds(self, session_id: str) -> bool:
        """Whether a session was made by this client and ends with it."""
        return session_id.startswith(self._mark)

    def new_id(self) -> str:
        """For a session that the client makes without naming it."""
        return f"{self._mark}{secrets.token_hex(6)}"

    async def own(self, *, gone: str = "") -> str:
        """The session that calls use which name none: made at first use, and again when it is `gone`."""
        async with self._making:
            if not self._own or self._own == gone:
                self._own = await self._found(gone) or await self._made()
            return self._own

    async def close(self) -> None:
        """Destroy what the client has made. Raises: SandboxError, several of them in a group."""
        self._own = ""
        await destroy_marked(self._client, self._mark)

    async def _found(self, gone: str) -> str:
        """What an earlier connection of this client, or of this tenant, was using."""
        for each in await self._client.sessions():
            if self._tenant_id:
                is_own = each.tenant_id == self._tenant_id and not each.parent_session_id
            else:
                is_own = each.session_id.startswith(f"{self._mark}{OWN}-")
            if is_own and each.session_id != gone:
                return each.session_id
        return ""

    async def _made(self) -> str:
        if self._tenant_id:
            return await self._client.create_session(tenant_id=self._tenant_id)
        return await self._client.create_session(session_id=f"{self._mark}{OWN}-{secrets.token_hex(4)}")
