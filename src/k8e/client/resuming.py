"""Output that goes on after a lost connection: asked for again from where it stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from k8e.client.errors import NotFound, SandboxError, Unreachable
from k8e.client.light.calls import after_loss
from k8e.client.retries import Patience
from k8e.client.transport import Transport
from k8e.client.values import Chunk, Exit

__all__ = ["Resuming"]

Output = AsyncIterator[Chunk | Exit]


class Resuming(Transport):
    async def _resumed(
        self,
        first: Callable[[], Output],
        again: Callable[[int, int], Output],
        stdout_offset: int = 0,
        stderr_offset: int = 0,
    ) -> Output:
        """`first`, and after a lost connection `again` from the offsets that were reached, until it is too late.

        `first` may be asked for a second time: it is, where nothing had begun when the connection was lost.
        """
        offsets = {"stdout": stdout_offset, "stderr": stderr_offset}
        lost: Unreachable | None = None
        items, attempt, patience, has_begun = first(), 0, Patience(), False
        while True:
            try:
                async for item in items:
                    lost, attempt, patience, has_begun = None, 0, Patience(), True
                    if isinstance(item, Chunk):
                        offsets[item.stream] = item.offset + len(item.data)
                    yield item
            except Unreachable as error:
                pause = self._pause_s(error, attempt, patience, repeatable=True)
                lost = lost or error
                if pause is None:
                    raise lost from error
            except SandboxError as error:
                if lost is None:
                    raise
                if has_begun or not isinstance(error, NotFound):
                    raise after_loss(lost, error) from error
                # Only once: a session that is gone is not found whatever is asked.
                items, has_begun = first(), True
                continue
            else:
                return
            await self._pause(pause)
            attempt += 1
            items = again(offsets["stdout"], offsets["stderr"])
