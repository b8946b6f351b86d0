"""Streams over frames, free of I/O: absolute offsets, acknowledgements that are window and retention at once, resume.

A sender keeps every byte in an `Outbox` until the receiver acknowledges it, and an outbox never holds more than its
window, so a slow reader stops the source and costs one window of memory. An outbox outlives the link: after a
reconnect the receiver says from which offset to go on. Events of one stream have a window of their own.

Never trust the peer: a window that is overrun, an offset that lies or a stream that does not exist raises
`ProtocolError`; nothing a peer names is imported or evaluated.
"""

from __future__ import annotations

import json
from collections import deque

from .frames import (
    ACK,
    CANCEL,
    DATA,
    END,
    EOF,
    EVENT,
    HELLO,
    MAX_DATA,
    MAX_FRAME,
    OPEN,
    RESUME,
    ProtocolError,
    data_head,
    frame,
    offset_frame,
)
from .items import Acked, Cancelled, Data, Ended, Event, Finished, Hello, Opened, Resumed
from .outbox import WINDOW, window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque, Dict, Iterable, List, Mapping, Optional, Tuple, Union

    from .frames import Frame
    from .items import Fields, Item, Json
    from .outbox import Outbox

    Buffer = Union[bytes, memoryview]

__all__ = ["Mux"]

_EVENTS = 255
"""The channel number under which events are acknowledged, counted in payload bytes."""
_MAX_STREAMS = 4096
_MAX_CHANNELS = 4
"""Of a stream, on which one end receives: each has a window of its own."""
_MAX_WORDS = 4096
"""Of the text of an error, in characters."""
_DIGITS = 20
"""Of a number that 64 bits may hold, with its sign."""


class _Feed:
    """An outbox being sent on a stream."""

    __slots__ = ("acked", "cursor", "held", "is_eof_sent", "outbox")

    def __init__(self, outbox: Outbox, cursor: int, held: bool, is_follower: bool) -> None:
        self.outbox = outbox
        self.cursor = max(cursor, outbox.base)
        self.held = held
        self.is_eof_sent = False
        self.acked: Optional[int] = self.cursor if is_follower else None
        """What a follower has acknowledged, which frees its own window and nothing in the outbox."""

    def limit(self) -> int:
        """How many bytes may be sent now. A follower that has fallen behind the outbox goes on at its oldest byte."""
        if self.acked is None:
            return MAX_DATA
        if self.cursor < self.outbox.base:
            if self.acked < self.cursor:
                return 0  # until all that was sent is delivered: then nothing of the window is in use
            self.cursor = self.acked = self.outbox.base
        return min(MAX_DATA, WINDOW - (self.cursor - self.acked))


class _Intake:
    """What has been received on a channel; offsets are None until the first byte says where it starts."""

    __slots__ = ("acked", "floor", "is_finished", "may_skip", "received")

    def __init__(self, floor: int = 0, may_skip: bool = False) -> None:
        self.floor = floor
        self.may_skip = may_skip
        """Whether offsets may jump ahead, as they do for a follower that has fallen behind."""
        self.received: Optional[int] = None
        self.acked = floor
        self.is_finished = False

    def take(self, offset: int, length: int, limit: int) -> None:
        if self.received is None:
            if offset < self.floor:
                raise ProtocolError("data starts at %d, before the %d asked for" % (offset, self.floor))
            self.received = self.acked = offset
        if self.may_skip and offset > self.received == self.acked:
            self.received = self.acked = offset
        if offset != self.received or self.is_finished:
            raise ProtocolError("data at %d where %d was due" % (offset, self.received))
        self.received += length
        if self.received - self.acked > limit:
            raise ProtocolError("the peer overran the window")


class _Stream:
    """One stream's state at this end."""

    __slots__ = (
        "acks",
        "events",
        "events_acked",
        "events_received",
        "events_sent",
        "feeds",
        "intakes",
        "is_abandoned",
        "is_resuming",
        "may_skip",
        "sizes",
        "tail",
    )

    def __init__(self) -> None:
        self.feeds: Dict[int, _Feed] = {}
        self.intakes: Dict[int, _Intake] = {}
        self.acks: Dict[int, int] = {}
        self.events: Deque[bytes] = deque()
        self.sizes: Deque[int] = deque()
        """Of the events received and not yet delivered."""
        self.tail: Deque[Tuple[int, bytes]] = deque()
        self.events_sent = self.events_received = self.events_acked = 0
        self.is_abandoned = False
        self.is_resuming = False
        self.may_skip = False
        """Whether the peer may leave out what it no longer has."""

    def intake(self, channel: int) -> _Intake:
        """What was received on a channel, from its first byte on.

        Raises:
            ProtocolError: the peer sends on more channels than any operation has.
        """
        intake = self.intakes.get(channel)
        if intake is None:
            if len(self.intakes) >= _MAX_CHANNELS:
                raise ProtocolError("data on more than %d channels" % _MAX_CHANNELS)
            intake = self.intakes[channel] = _Intake(may_skip=self.may_skip)
        return intake


class Mux:
    """One end of a link. Each greets once, the dialer first; the dialer opens streams and cancels them, the acceptor
    ends them."""

    def __init__(self, *, is_dialer: bool) -> None:
        self._is_dialer = is_dialer
        self._streams: Dict[int, _Stream] = {}
        self._is_greeted = False
        self._next_stream = 1
        self._last_opened = 0
        self._control: Deque[bytes] = deque()
        self._ended: List[int] = []
        self._ready: Dict[int, None] = {}
        """Streams that may have something to send, in turn."""

    # What this end says.

    def hello(self, fields: Mapping[str, Json]) -> None:
        """Greet; the first frame of either end."""
        self._control.append(frame(0, HELLO, _pack(fields)))

    def open(
        self,
        op: str,
        args: Mapping[str, Json],
        *,
        offsets: Optional[Mapping[int, int]] = None,
        may_skip: bool = False,
    ) -> int:
        """Start a stream. With `offsets` it resumes: data is due from them on, and ours waits for the peer's RESUME.

        With `may_skip` the peer may leave out what it no longer has.

        Raises:
            ValueError: the arguments do not fit in a frame.
        """
        number = self._next_stream
        request = frame(number, OPEN, _pack({"op": op, "args": args}))
        self._next_stream += 1
        stream = self._streams[number] = _Stream()
        if offsets is not None:
            stream.is_resuming = True
            stream.may_skip = may_skip
            stream.intakes = {channel: _Intake(offset, may_skip) for channel, offset in offsets.items()}
        self._control.append(request)
        return number

    def attach(
        self,
        number: int,
        channel: int,
        outbox: Outbox,
        *,
        cursor: int = 0,
        is_resumed: bool = False,
        is_follower: bool = False,
    ) -> None:
        """Send `outbox` on a channel, from `cursor` or the oldest byte that is left.

        An outbox may be sent on many streams: to one that owns it, whose acknowledgements free it, and to followers.
        """
        stream = self._streams[number]
        stream.feeds[channel] = _Feed(outbox, cursor, stream.is_resuming and not is_resumed, is_follower)
        self.wake(number)

    def wake(self, number: int) -> None:
        """An outbox of this stream has grown or finished."""
        self._ready[number] = None

    def resume(self, number: int, channel: int, offset: int) -> None:
        """Tell the peer from where to go on with a channel that it sends."""
        self._streams[number].intakes[channel] = _Intake(offset)
        self._control.append(offset_frame(number, RESUME, channel, offset))

    def ack(self, number: int, channel: int, offset: int) -> None:
        """Everything of a channel before `offset` is delivered; old or late calls change nothing."""
        stream = self._streams.get(number)
        intake = stream.intakes.get(channel) if stream else None
        if stream is None or intake is None or intake.received is None or offset <= intake.acked:
            return
        intake.acked = min(offset, intake.received)
        stream.acks[channel] = intake.acked
        self.wake(number)

    def consume(self, number: int) -> None:
        """The oldest event received on a stream was delivered: give its room back."""
        stream = self._streams.get(number)
        if stream is not None and stream.sizes:
            stream.events_acked += stream.sizes.popleft()
            stream.acks[_EVENTS] = stream.events_acked
            self.wake(number)

    def event(self, number: int, name: str, fields: Mapping[str, Json], *, after_data: bool = False) -> None:
        """Queue an event; `after_data` holds it until every outbox has finished and is sent."""
        stream = self._streams.get(number)
        if stream is None or stream.is_abandoned:
            return
        payload = _pack({"event": name, "fields": fields})
        if after_data:
            stream.tail.append((EVENT, payload))
        else:
            stream.events.append(payload)
        self.wake(number)

    def end(self, number: int, result: Mapping[str, Json]) -> None:
        """End a stream well, once everything before has been sent."""
        stream = self._streams.get(number)
        if stream is not None and not stream.is_abandoned:
            stream.tail.append((END, _pack({"result": result})))
            self.wake(number)

    def fail(self, number: int, code: str, message: str) -> None:
        """End a stream with an error, at once."""
        stream = self._streams.get(number)
        if stream is not None and not stream.is_abandoned:
            self._cut(number, stream, {"error": {"code": code, "message": message[:_MAX_WORDS]}})

    def _cut(self, number: int, stream: _Stream, last: Mapping[str, Json]) -> None:
        stream.feeds.clear()
        stream.events.clear()
        stream.tail.clear()
        stream.tail.append((END, _pack(last)))
        self.wake(number)

    def cancel(self, number: int) -> None:
        """Lose interest; whatever is still under way for this stream is dropped."""
        stream = self._streams.get(number)
        if stream is not None and not stream.is_abandoned:
            stream.is_abandoned = True
            stream.feeds.clear()
            self._control.append(frame(number, CANCEL))

    def has_stream(self, number: int) -> bool:
        """Whether the stream still exists at this end."""
        return number in self._streams

    def backlog(self, number: int) -> int:
        """Event bytes queued or unacknowledged on a stream; a producer of many events waits while they are many."""
        stream = self._streams.get(number)
        if stream is None:
            return 0
        return sum(map(len, stream.events)) + stream.events_sent - stream.events_acked

    def output(self, limit: int) -> List[Buffer]:
        """Take about `limit` bytes to send: control first, then the streams in turn, a frame each."""
        out: List[Buffer] = list(self._control)
        size = sum(map(len, out))
        self._control.clear()
        while self._ready and size < limit:
            number = next(iter(self._ready))
            del self._ready[number]
            sent = self._emit(number, out)
            size += sent
            if sent and number in self._streams:
                self._ready[number] = None
        return out

    def take_ended(self) -> List[int]:
        """Streams whose end has been sent since this was asked last: nothing more of them is ever received."""
        ended, self._ended = self._ended, []
        return ended

    def _emit(self, number: int, out: List[Buffer]) -> int:
        """Send one turn of a stream; zero when it has nothing (left)."""
        stream = self._streams.get(number)
        if stream is None:
            return 0
        before = len(out)
        for channel, offset in stream.acks.items():
            out.append(offset_frame(number, ACK, channel, offset))
        stream.acks.clear()
        self._emit_events(number, stream, out)
        for channel, feed in stream.feeds.items():
            _emit_data(number, channel, feed, out)
        if stream.tail and not stream.events and all(feed.is_eof_sent for feed in stream.feeds.values()):
            self._emit_tail(number, stream, out)
        return sum(map(len, out[before:]))

    def _emit_events(self, number: int, stream: _Stream, out: List[Buffer]) -> None:
        while stream.events and self._may_send(stream, len(stream.events[0])):
            payload = stream.events.popleft()
            stream.events_sent += len(payload)
            out.append(frame(number, EVENT, payload))

    def _emit_tail(self, number: int, stream: _Stream, out: List[Buffer]) -> None:
        while stream.tail:
            kind, payload = stream.tail[0]
            if kind == EVENT and not self._may_send(stream, len(payload)):
                return
            stream.tail.popleft()
            out.append(frame(number, kind, payload))
            if kind == END:
                del self._streams[number]
                self._ended.append(number)
                return
            stream.events_sent += len(payload)

    @staticmethod
    def _may_send(stream: _Stream, size: int) -> bool:
        return stream.events_sent + size - stream.events_acked <= WINDOW

    # What the peer says.

    def receive(self, frames: Iterable[Frame]) -> List[Tuple[int, Item]]:
        """Check frames and turn them into (stream, item).

        Raises:
            ProtocolError: the link must be closed.
        """
        items: List[Tuple[int, Item]] = []
        for number, kind, channel, offset, payload in frames:
            item = self._receive(number, kind, channel, offset, payload)
            if item is not None:
                items.append((number, item))
        return items

    def _receive(self, number: int, kind: int, channel: int, offset: int, payload: bytes) -> Optional[Item]:
        if kind == HELLO:
            return self._greeted(number, payload)
        if kind == OPEN:
            return self._opened(number, payload)
        stream = self._streams.get(number)
        if stream is None:
            if self._is_dialer or number > self._last_opened:
                raise ProtocolError("stream %d does not exist" % number)
            return None  # we have ended it while the peer's frame was under way
        if kind == DATA:
            return self._data(stream, channel, offset, payload)
        if kind == ACK:
            return self._acked(number, stream, channel, offset)
        if kind == EVENT:
            return self._event(stream, payload)
        if kind == EOF:
            return self._finished(stream, channel, offset)
        if kind == RESUME:
            return self._resumed(number, stream, channel, offset)
        return self._over(number, stream, kind, payload)

    def _greeted(self, number: int, payload: bytes) -> Item:
        if number or self._is_greeted:
            raise ProtocolError("a hello out of place")
        self._is_greeted = True
        return Hello(_unpack(payload))

    def _opened(self, number: int, payload: bytes) -> Item:
        if self._is_dialer or number <= self._last_opened:
            raise ProtocolError("stream %d cannot be opened" % number)
        if len(self._streams) >= _MAX_STREAMS:
            raise ProtocolError("more than %d streams" % _MAX_STREAMS)
        fields = _unpack(payload)
        op, args = fields.get("op"), fields.get("args")
        if not isinstance(op, str) or not isinstance(args, dict):
            raise ProtocolError("an open without op and args")
        self._last_opened = number
        self._streams[number] = _Stream()
        return Opened(op, args)

    def _data(self, stream: _Stream, channel: int, offset: int, payload: bytes) -> Optional[Item]:
        if stream.is_abandoned:
            return None
        if channel == _EVENTS:
            raise ProtocolError("data on the event channel")
        if not payload:
            # It would use nothing of the window, and so cost its receiver memory without a bound.
            raise ProtocolError("data without a byte")
        stream.intake(channel).take(offset, len(payload), window(channel))
        return Data(channel, offset, payload)

    def _finished(self, stream: _Stream, channel: int, offset: int) -> Optional[Item]:
        if stream.is_abandoned:
            return None
        intake = stream.intake(channel)
        intake.take(offset, 0, window(channel))
        intake.is_finished = True
        return Finished(channel, offset)

    def _acked(self, number: int, stream: _Stream, channel: int, offset: int) -> Optional[Item]:
        if channel == _EVENTS:
            if not stream.events_acked <= offset <= stream.events_sent:
                raise ProtocolError("acknowledged events that were not sent")
            stream.events_acked = offset
            self.wake(number)
            return Acked(channel, offset)
        feed = stream.feeds.get(channel)
        if feed is None:
            if stream.is_abandoned or not self._is_dialer:
                return None
            raise ProtocolError("acknowledged channel %d, which carries nothing" % channel)
        if offset > feed.cursor:
            raise ProtocolError("acknowledged %d where %d was sent" % (offset, feed.cursor))
        if feed.acked is None:
            feed.outbox.ack(offset)
        else:
            feed.acked = max(feed.acked, offset)
            self.wake(number)
        return Acked(channel, offset)

    def _resumed(self, number: int, stream: _Stream, channel: int, offset: int) -> Optional[Item]:
        if stream.is_abandoned:
            return None
        if not stream.is_resuming:
            raise ProtocolError("a resume that was not asked for")
        feed = stream.feeds.get(channel)
        if feed is not None and feed.held:
            feed.outbox.shift(offset)
            feed.cursor, feed.held = offset, False
            self.wake(number)
        return Resumed(channel, offset)

    def _event(self, stream: _Stream, payload: bytes) -> Optional[Item]:
        if not self._is_dialer:
            raise ProtocolError("an event from the dialer")
        if stream.is_abandoned:
            return None
        stream.events_received += len(payload)
        if stream.events_received - stream.events_acked > WINDOW:
            raise ProtocolError("the peer overran the event window")
        body = _unpack(payload)
        name, fields = body.get("event"), body.get("fields")
        if not isinstance(name, str) or not isinstance(fields, dict):
            raise ProtocolError("an event without name and fields")
        stream.sizes.append(len(payload))
        return Event(name, fields)

    def _over(self, number: int, stream: _Stream, kind: int, payload: bytes) -> Optional[Item]:
        if kind == CANCEL:
            if self._is_dialer:
                raise ProtocolError("a cancel from the acceptor")
            stream.is_abandoned = True
            self._cut(number, stream, {"result": {}})
            return Cancelled()
        if not self._is_dialer:
            raise ProtocolError("an end from the dialer")
        del self._streams[number]
        return None if stream.is_abandoned else _ended(_unpack(payload))


def _emit_data(number: int, channel: int, feed: _Feed, out: List[Buffer]) -> None:
    if feed.held:
        return
    limit = feed.limit()
    if limit <= 0:
        return
    piece = feed.outbox.read(feed.cursor, limit)
    if len(piece):
        out.append(data_head(number, channel, feed.cursor, len(piece)))
        out.append(piece)
        feed.cursor += len(piece)
    elif feed.outbox.finished and not feed.is_eof_sent:
        feed.is_eof_sent = True
        out.append(offset_frame(number, EOF, channel, feed.cursor))


def _ended(body: Fields) -> Ended:
    error, result = body.get("error"), body.get("result")
    if isinstance(error, dict):
        return Ended({}, (_words(error.get("code"), "internal"), _words(error.get("message"), "")))
    if not isinstance(result, dict):
        raise ProtocolError("an end without result")
    return Ended(result)


def _pack(fields: Mapping[str, Json]) -> bytes:
    """The payload of a control frame.

    Raises:
        ValueError: it does not fit; looked at here, because an error while frames are sent would lose those of others.
    """
    # ensure_ascii keeps lone surrogates, so any file name survives the trip.
    payload = json.dumps(fields, separators=(",", ":")).encode("ascii")
    if len(payload) > MAX_FRAME:
        raise ValueError("a control message of %d bytes exceeds the frame limit of %d" % (len(payload), MAX_FRAME))
    return payload


def _unpack(payload: bytes) -> Fields:
    try:
        fields = _loaded(payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a control message is not JSON") from error
    if not isinstance(fields, dict):
        raise ProtocolError("a control message is not an object")
    return fields


def _loaded(payload: bytes) -> Json:
    try:
        return json.loads(payload)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:
        # It is JSON, with a whole number of more digits than Python turns into one. Whoever reads that field refuses it;
        # the other streams of this link have said nothing wrong.
        return json.loads(payload, parse_int=_bounded)


def _bounded(digits: str) -> Json:
    return int(digits) if len(digits) <= _DIGITS else float("inf")


def _words(value: Json, otherwise: str) -> str:
    """Words of the peer for people: bounded, and whatever they are, somebody can encode them."""
    if not isinstance(value, str):
        return otherwise
    words: str = value[:_MAX_WORDS]
    try:
        words.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return words.encode("utf-8", "replace").decode("utf-8")
    return words
