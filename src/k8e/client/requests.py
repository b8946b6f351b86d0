"""What a caller streams to the server, watched: an error in it is the caller's own, and must come back as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from grpc import aio

from k8e.client.errors import SandboxError

__all__ = ["Watched"]

T = TypeVar("T")


class Watched(Generic[T]):
    """An iteration that grpc reads on a task of its own, where it turns every error into a cancelled call."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self._failure: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[T]:
        try:
            async for item in self._items:
                yield item
        except Exception as error:
            self._failure = error
            raise

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Raises what the iteration raised in place of what the call made of it."""
        try:
            yield
        except (asyncio.CancelledError, aio.AioRpcError, SandboxError) as error:
            if self._failure is not None:
                raise self._failure from error
            raise
