"""One call as a handler sees it: who asks, how to write a stream, what to add to the trailer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from k8e.model import OwnerId

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from grpc import aio

__all__ = ["Call"]


@dataclass(frozen=True, slots=True)
class Call:
    owner: OwnerId
    context: aio.ServicerContext[Any, Any]

    async def write(self, message: Message) -> None:
        """Send one message of a stream; waits while the reader is slow."""
        await self.context.write(message)

    def trail(self, **metadata: str | int | bool) -> None:
        """Add `k8e-…` entries to the trailing metadata."""
        values = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in metadata.items()}
        self.context.set_trailing_metadata(
            tuple((f"k8e-{key.replace('_', '-')}", text) for key, text in values.items())
        )
