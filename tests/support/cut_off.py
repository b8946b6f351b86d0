"""Sandboxes that cannot be reached for a while, though they run: links break, and new ones are refused."""

from __future__ import annotations

from k8e.model import SandboxId
from k8e.wire.aio import Credentials, Link
from tests.support.restartable_engine import OwnSandboxes

__all__ = ["CutOff"]


class CutOff(OwnSandboxes):
    """A machine whose agents are in reach until `cut`, and again from `heal` on."""

    def __init__(self, shared: OwnSandboxes) -> None:
        super().__init__(shared._shared)
        self.is_cut = False
        self._links: list[Link] = []

    async def dial(self, sandbox: SandboxId, credentials: Credentials) -> Link:
        if self.is_cut:
            raise ConnectionRefusedError("cut off")
        link: Link = await self._shared.dial(sandbox, credentials)
        self._links.append(link)
        return link

    async def cut(self) -> None:
        self.is_cut = True
        while self._links:
            await self._links.pop().close()

    def heal(self) -> None:
        self.is_cut = False
