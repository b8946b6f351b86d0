"""One call as a handler sees it, whichever door it came through: who asks, how to answer in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from k8e.byte_budget import ByteReservation
from k8e.errors import Denied, Exhausted
from k8e.identity.callers import Caller, Role
from k8e.model import OwnerId

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["Call", "OfOwners", "too_much_memory", "trailing", "whose"]


class Call(Protocol):
    @property
    def caller(self) -> Caller: ...

    @property
    def owner(self) -> OwnerId:
        """Whose things this call is about: the caller's own, or those of whom an administrator speaks for."""
        ...

    @property
    def traceparent(self) -> str:
        """The caller's own trace (W3C), empty where it sent none."""
        ...

    @property
    def reservation(self) -> ByteReservation:
        """What counts the memory of its answer."""
        ...

    async def write(self, message: Message) -> None:
        """Send one message of a stream; waits while the reader is slow."""
        ...

    def trail(self, **metadata: str | int | bool) -> None:
        """Add `k8e-…` entries to what follows the last message."""
        ...


class OfOwners(Protocol):
    """A request for a list that may be everybody's."""

    @property
    def all_owners(self) -> bool: ...


def too_much_memory() -> Exhausted:
    """For a call whose request or answer finds no memory because the owner's other calls hold it."""
    return Exhausted("your calls hold too much memory: use a stream, or wait for those that run", retry_after_s=1.0)


def whose(call: Call, request: OfOwners, things: str) -> OwnerId | None:
    """The owner that a list is about; None is everybody. Raises: Denied for that, except to administrators."""
    if not request.all_owners:
        return call.owner
    if call.caller.role is not Role.ADMIN:
        raise Denied(f"only an administrator sees the {things} of every owner")
    return None


def trailing(**metadata: str | int | bool) -> dict[str, str]:
    """What follows the last message, as text under names of ours."""
    return {
        f"k8e-{key.replace('_', '-')}": str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in metadata.items()
    }
