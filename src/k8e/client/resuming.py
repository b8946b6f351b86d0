"""Output that goes on after a lost connection: asked for again from where it stopped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

from k8e.client.errors import NotFound, Unreachable
from k8e.client.retries import Patience, pause_s
from k8e.client.transport import Transport
from k8e.client.values import Chunk, Exit

__all__ = ["Resuming"]

Output = AsyncIterator[Chunk | Exit]


class Resuming(Transport):
    async def _resumed(
        self, first: Output, again: Callable[[int, int], Output], stdout_offset: int = 0, stderr_offset: int = 0
    ) -> Output:
        """`first`, and after a lost connection `again` from the offsets that were reached, until it is too late."""
        offsets = {"stdout": stdout_offset, "stderr": stderr_offset}
        lost: Unreachable | None = None
        items, attempt, patience = first, 0, Patience()
        while True:
            try:
                async for item in items:
                    lost, attempt, patience = None, 0, Patience()
                    if isinstance(item, Chunk):
                        offsets[item.stream] = item.offset + len(item.data)
                    yield item
            except NotFound as error:
                # It had not begun when the connection was lost: what is there to say is that it was.
                raise lost or error from error
            except Unreachable as error:
                lost = error
            else:
                return
            pause = pause_s(
                lost,
                attempt=attempt,
                waited_s=patience.used_s(),
                chance=random.random(),  # noqa: S311 - it only spreads clients out
                repeatable=True,
                was_answered=self._was_answered,
            )
            if pause is None:
                raise lost
            await asyncio.sleep(pause)
            attempt += 1
            items = again(offsets["stdout"], offsets["stderr"])
