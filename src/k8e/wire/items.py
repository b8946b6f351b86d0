"""What a multiplexer hands to its owner: one small record per thing that the peer said."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple, Union

    Json = Any
    Fields = Dict[str, Json]
    Item = Union["Acked", "Cancelled", "Data", "Ended", "Event", "Finished", "Hello", "Opened", "Resumed"]

__all__ = ["Acked", "Cancelled", "Data", "Ended", "Event", "Finished", "Hello", "Opened", "Resumed"]


class _Value:
    """A plain record; `dataclasses` would double the agent's start-up time."""

    __slots__: Tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # records hold dictionaries

    def __repr__(self) -> str:
        return "%s(%s)" % (type(self).__name__, ", ".join("%s=%r" % (n, getattr(self, n)) for n in self.__slots__))


class Hello(_Value):
    """The peer's greeting: who dials, or who answers."""

    __slots__ = ("fields",)
    fields: Fields

    def __init__(self, fields: Fields) -> None:
        self.fields = fields


class Opened(_Value):
    """The dialer asks for an operation."""

    __slots__ = ("args", "op")
    op: str
    args: Fields

    def __init__(self, op: str, args: Fields) -> None:
        self.op, self.args = op, args


class Data(_Value):
    """Content of a channel; `offset` is that of its first byte."""

    __slots__ = ("channel", "offset", "payload")
    channel: int
    offset: int
    payload: bytes

    def __init__(self, channel: int, offset: int, payload: bytes) -> None:
        self.channel, self.offset, self.payload = channel, offset, payload


class Finished(_Value):
    """A channel has ended after `offset` bytes."""

    __slots__ = ("channel", "offset")
    channel: int
    offset: int

    def __init__(self, channel: int, offset: int) -> None:
        self.channel, self.offset = channel, offset


class Acked(_Value):
    """The peer has delivered everything of a channel before `offset`."""

    __slots__ = ("channel", "offset")
    channel: int
    offset: int

    def __init__(self, channel: int, offset: int) -> None:
        self.channel, self.offset = channel, offset


class Resumed(_Value):
    """The peer wants a channel from `offset` on."""

    __slots__ = ("channel", "offset")
    channel: int
    offset: int

    def __init__(self, channel: int, offset: int) -> None:
        self.channel, self.offset = channel, offset


class Event(_Value):
    """Something happened on a stream."""

    __slots__ = ("fields", "name")
    name: str
    fields: Fields

    def __init__(self, name: str, fields: Fields) -> None:
        self.name, self.fields = name, fields


class Ended(_Value):
    """The stream is over: with a result, or with an error (code, message)."""

    __slots__ = ("error", "result")
    result: Fields
    error: Optional[Tuple[str, str]]

    def __init__(self, result: Fields, error: Optional[Tuple[str, str]] = None) -> None:
        self.result, self.error = result, error


class Cancelled(_Value):
    """The dialer is no longer interested."""

    __slots__: Tuple[str, ...] = ()
