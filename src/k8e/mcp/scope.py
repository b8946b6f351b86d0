"""What one MCP client has made. Its sandboxes carry the client's mark in their ids, so they are found after any death.

A session that was named by the client, or is a tenant's, is the caller's own and stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple

from k8e.client import AsyncSandboxClient, Identity, SessionInfo
from k8e.client.errors import NotFound

__all__ = ["MARKED", "PREFIX", "ClientScope", "OutputFile", "OutputFiles", "destroy_marked", "mark_of"]

PREFIX = "mcp"
MARK_CHARS = 12
MARKED = re.compile(rf"{PREFIX}-([0-9a-f]{{{MARK_CHARS}}})-.+")
"""Ids of sessions that end with their client: nobody gives another one such a name."""
OWN = "own"
"""In the id of the one session that calls use which name none."""
RECENT = 1000
"""Questions to its user that are remembered of one client."""
OUTPUT_FILES = 32
OUTPUT_BYTES = 32 * 1024 * 1024
"""Of output that answers had no room for, in files of the client's sessions."""


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


class Recent:
    """The last so many of some names."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, name: str) -> bool:
        """Whether it is new."""
        is_new = name not in self._names
        self._names[name] = None
        if len(self._names) > RECENT:
            del self._names[next(iter(self._names))]
        return is_new

    def take(self, name: str) -> bool:
        """Whether it was there; now it is not."""
        was_there = name in self._names
        self._names.pop(name, None)
        return was_there


class OutputFile(NamedTuple):
    session_id: str
    path: str


class OutputFiles:
    """Files of output that calls have left in sessions, or still write: so many of them, and so much in them."""

    def __init__(self) -> None:
        self._sizes: dict[OutputFile, int] = {}
        self._open: set[OutputFile] = set()

    def grow(self, file: OutputFile, size: int) -> tuple[bool, list[OutputFile]]:
        """Whether there is room for so much more in a file; and those that must go for it, the oldest first.

        What calls still write stays: one that finds no room beside it has to do without.
        """
        self._open.add(file)
        self._sizes.setdefault(file, 0)
        ended = [each for each in self._sizes if each not in self._open]
        removed: list[OutputFile] = []
        while self._is_too_much(size) and ended:
            removed.append(ended.pop(0))
            del self._sizes[removed[-1]]
        has_room = not self._is_too_much(size)
        if has_room:
            self._sizes[file] += size
        return has_room, removed

    def end(self, file: OutputFile, *, is_kept: bool) -> None:
        """Nobody writes it any more; where nothing is kept, it is not there."""
        self._open.discard(file)
        if not is_kept:
            self._sizes.pop(file, None)

    def _is_too_much(self, more: int) -> bool:
        return len(self._sizes) > OUTPUT_FILES or sum(self._sizes.values()) + more > OUTPUT_BYTES


class ClientScope:
    """`prefix` keeps apart whose sessions they are to clean up: `mcp` are those of clients of the server itself."""

    def __init__(
        self, client: AsyncSandboxClient, client_id: str, *, tenant_id: str = "", prefix: str = PREFIX
    ) -> None:
        self._client = client
        self._tenant_id = tenant_id
        self._mark = f"{prefix}-{mark_of(client_id)}-"
        self._own = ""
        self._making = asyncio.Lock()
        self._asked = Recent()
        self._shown = Recent()
        self.outputs = OutputFiles()
        self._identity: Identity | None = None
        self.unheard = ""
        """Why an answer in the client's window does not count, once that is known."""

    def holds(self, session_id: str) -> bool:
        """Whether a session was made by this client and ends with it."""
        return session_id.startswith(self._mark)

    def uses(self, session_id: str) -> bool:
        """Whether calls that name no session use or make this one; a tenant's that is to be made has no name."""
        return self.holds(session_id) or (bool(self._tenant_id) and session_id in {"", self._own})

    async def identity(self) -> Identity:
        """Who the server takes the client for; one scope is never somebody else's."""
        if self._identity is None:
            self._identity = await self._client.whoami()
        return self._identity

    def new_id(self) -> str:
        """For a session that the client makes without naming it."""
        return f"{self._mark}{secrets.token_hex(6)}"

    async def own(self, *, gone: str = "") -> str:
        """The session that calls use which name none: made at first use, and again when it is `gone`."""
        async with self._making:
            if not self._own or self._own == gone:
                found = self._own_of(await self._client.sessions(), gone)
                self._own = found.session_id if found else await self._made()
            return self._own

    async def present(self) -> SessionInfo | None:
        """The same, where there is one already."""
        return self._own_of(await self._client.sessions())

    async def sessions(self) -> list[str]:
        """The own one and what else this client has made, while it is there."""
        found = await self._client.sessions()
        own = self._own_of(found)
        return [each.session_id for each in found if self.holds(each.session_id) or (own and each == own)]

    def claim(self, approval_id: str) -> bool:
        """Whether nobody has shown this question to the client's user yet; from now on somebody has."""
        return self._shown.add(approval_id)

    def release(self, approval_id: str) -> None:
        """It was not shown to its end: somebody else may."""
        self._shown.take(approval_id)

    def ask(self, approval_id: str) -> None:
        """A question goes to the client's user, whose answer comes with another call."""
        self._asked.add(approval_id)

    def answered(self, approval_id: str) -> bool:
        """Whether that question was asked; an answer counts once."""
        return self._asked.take(approval_id)

    def _own_of(self, sessions: Iterable[SessionInfo], gone: str = "") -> SessionInfo | None:
        """What an earlier call or connection of this client, or of this tenant, was using."""
        for each in sessions:
            if self._tenant_id:
                is_own = each.tenant_id == self._tenant_id and not each.parent_session_id
            else:
                is_own = each.session_id.startswith(f"{self._mark}{OWN}-")
            if is_own and each.session_id != gone:
                return each
        return None

    async def _made(self) -> str:
        if self._tenant_id:
            return await self._client.create_session(tenant_id=self._tenant_id)
        return await self._client.create_session(session_id=f"{self._mark}{OWN}-{secrets.token_hex(4)}")
