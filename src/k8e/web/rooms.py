"""How much one identity may ask at a time, whichever of its clients asks: as much as one client of the other transport."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from mcp_types import JSONRPCRequest, RequestId
from starlette.types import Receive

from k8e.mcp.admission import BYTES, Admission

__all__ = ["Full", "Room"]


class Full(Exception):
    """There is no room for one more."""


class Room:
    def __init__(self) -> None:
        self._admission = Admission()
        self._numbers = itertools.count()
        self._turns: dict[RequestId, asyncio.Event] = {}
        self._arriving = 0

    @contextmanager
    def arriving(self, receive: Receive) -> Iterator[Receive]:
        """While a request comes in: what is there of it takes room; a single one may always come. It raises: Full."""
        taken = 0

        async def received() -> MutableMapping[str, Any]:
            nonlocal taken
            message = await receive()
            size = len(message.get("body", b""))
            if self._arriving > taken and self._arriving + size > BYTES:
                raise Full
            taken += size
            self._arriving += size
            return message

        try:
            yield received
        finally:
            self._arriving -= taken

    @asynccontextmanager
    async def place(self, request: JSONRPCRequest, size: int) -> AsyncIterator[None]:
        """Be in the room, when it is this one's turn. Raises: Full."""
        # Clients do not know of each other, and may use the same numbers.
        ticket = request.model_copy(update={"id": next(self._numbers)})
        if self._admission.is_busy(ticket, size):
            raise Full
        turn = self._turns[ticket.id] = asyncio.Event()
        try:
            if not self._admission.begin(ticket, size):
                await turn.wait()
            yield
        finally:
            del self._turns[ticket.id]
            if not self._admission.forget(ticket.id):
                for following in self._admission.end(ticket.id):
                    self._turns[following.id].set()
