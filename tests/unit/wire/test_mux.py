"""The multiplexer: what goes in comes out, windows bound it, and a reconnect resumes without loss or repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8e.wire import frames
from k8e.wire.frames import Decoder, ProtocolError
from k8e.wire.items import Acked, Cancelled, Data, Ended, Event, Finished, Hello, Opened
from k8e.wire.mux import Mux
from k8e.wire.outbox import STDIN_WINDOW, WINDOW, Outbox

if TYPE_CHECKING:
    from k8e.wire.items import Item


class Ends:
    """A dialer and an acceptor with perfect wires between them."""

    def __init__(self) -> None:
        self.dialer, self.acceptor = Mux(is_dialer=True), Mux(is_dialer=False)
        self._decoders = {id(self.dialer): Decoder(), id(self.acceptor): Decoder()}

    def to(self, target: Mux, limit: int = 1 << 30) -> list[tuple[int, Item]]:
        source = self.acceptor if target is self.dialer else self.dialer
        items: list[tuple[int, Item]] = []
        while output := source.output(limit):
            items += target.receive(self._decoders[id(target)].feed(b"".join(output)))
        return items


def opened(ends: Ends, op: str = "x", **offsets: int) -> int:
    number = ends.dialer.open(op, {}, offsets={int(c[1:]): o for c, o in offsets.items()} if offsets else None)
    assert ends.to(ends.acceptor) == [(number, Opened(op, {}))]
    return number


def test_a_call_is_an_open_and_an_end() -> None:
    ends = Ends()
    ends.acceptor.hello({"v": 1})
    assert ends.to(ends.dialer) == [(0, Hello({"v": 1}))]
    number = opened(ends)
    ends.acceptor.end(number, {"answer": "\udcff"})
    assert ends.to(ends.dialer) == [(number, Ended({"answer": "\udcff"}))]
    assert not ends.dialer.has_stream(number)


def test_an_end_waits_for_the_data_before_it() -> None:
    ends = Ends()
    number, outbox = opened(ends), Outbox()
    ends.acceptor.attach(number, 1, outbox)
    ends.acceptor.event(number, "exited", {}, after_data=True)
    ends.acceptor.end(number, {})
    assert ends.to(ends.dialer) == []
    outbox.append(b"last words")
    outbox.finish()
    ends.acceptor.wake(number)
    kinds = [type(item) for _, item in ends.to(ends.dialer)]
    assert kinds == [Data, Finished, Event, Ended]


def test_a_cancelled_stream_is_ended_by_the_acceptor_and_forgotten() -> None:
    ends = Ends()
    number = opened(ends)
    ends.dialer.cancel(number)
    assert ends.to(ends.acceptor) == [(number, Cancelled())]
    ends.acceptor.event(number, "late", {})
    assert ends.to(ends.dialer) == []
    assert not ends.dialer.has_stream(number)
    assert not ends.acceptor.has_stream(number)


def test_events_have_a_window_too() -> None:
    ends = Ends()
    number = opened(ends)
    for _ in range(5):
        ends.acceptor.event(number, "big", {"text": "x" * (WINDOW // 2 - 100)})
    assert len(ends.to(ends.dialer)) == 2
    ends.dialer.consume(number)
    ends.to(ends.acceptor)
    assert len(ends.to(ends.dialer)) == 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=70_000), max_size=30),
    st.lists(st.integers(0, 5), max_size=40),
    st.randoms(use_true_random=False),
)
def test_reconnects_at_any_moment_lose_and_repeat_nothing(chunks, cuts, random) -> None:  # type: ignore[no-untyped-def]
    """A sender whose outbox outlives its links, a receiver that acknowledges when it likes, links that die anywhere."""
    outbox, received, acked, pending = Outbox(WINDOW), b"", 0, list(chunks)
    for cut in [*cuts, 1 << 30]:
        ends = Ends()
        number = opened(ends, "attach", c1=len(received))
        ends.acceptor.attach(number, 1, outbox, cursor=len(received))
        steps = 0
        while steps <= cut and not (outbox.finished and len(received) == outbox.end):
            steps += 1
            while pending and outbox.room >= len(pending[0]):
                outbox.append(pending.pop(0))
            if not pending:
                outbox.finish()
            ends.acceptor.wake(number)
            for _, item in ends.to(ends.dialer):
                if isinstance(item, Data):
                    assert item.offset == len(received)
                    received += item.payload
            assert outbox.end - outbox.base <= WINDOW
            if random.random() < 0.7 or steps > 5:
                acked = len(received)
                ends.dialer.ack(number, 1, acked)
                ends.to(ends.acceptor)
    assert received == b"".join(chunks)


def test_a_resumed_channel_goes_on_at_the_receivers_offset() -> None:
    ends = Ends()
    number = opened(ends, "attach", c1=0)
    outbox = Outbox(STDIN_WINDOW)
    ends.dialer.attach(number, 0, outbox)
    outbox.append(b"more")
    ends.dialer.wake(number)
    assert ends.to(ends.acceptor) == []
    ends.acceptor.resume(number, 0, 100)
    ends.to(ends.dialer)
    assert ends.to(ends.acceptor) == [(number, Data(0, 100, b"more"))]
    ends.acceptor.ack(number, 0, 104)
    assert ends.to(ends.dialer) == [(number, Acked(0, 104))]
    assert outbox.room == STDIN_WINDOW


@given(st.lists(st.binary(min_size=1, max_size=9000), max_size=20), st.data())
def test_an_outbox_reads_back_what_is_retained(chunks: list[bytes], draw: st.DataObject) -> None:
    outbox, whole = Outbox(1 << 20), b"".join(chunks)
    for chunk in chunks:
        outbox.append(chunk)
    outbox.ack(draw.draw(st.integers(0, len(whole))))
    offset = draw.draw(st.integers(outbox.base, outbox.end))
    got = b""
    while offset + len(got) < outbox.end:
        got += outbox.read(offset + len(got), 777)
    assert got == whole[offset:]


def data(stream: int, offset: int, size: int, channel: int = 1) -> bytes:
    return frames.data_head(stream, channel, offset, size) + bytes(size)


HOSTILE = {
    "a stream that does not exist": [data(9, 0, 1)],
    "a gap": [data(1, 0, 1), data(1, 2, 1)],
    "a repetition": [data(1, 0, 2), data(1, 1, 1)],
    "an overrun window": [data(1, n * 500_000, 500_000) for n in range(3)],
    "data after its end": [frames.offset_frame(1, frames.EOF, 1, 0), data(1, 0, 1)],
    "an end at the wrong place": [data(1, 0, 1), frames.offset_frame(1, frames.EOF, 1, 5)],
    "an acknowledgement of nothing": [frames.offset_frame(1, frames.ACK, 0, 0)],
    "an acknowledgement of events never sent": [frames.offset_frame(1, frames.ACK, 255, 1)],
    "data on the event channel": [data(1, 0, 1, channel=255)],
    "a resume out of place": [frames.offset_frame(1, frames.RESUME, 0, 5)],
    "an open from the acceptor": [frames.frame(2, frames.OPEN, b'{"op":"x","args":{}}')],
    "a cancel from the acceptor": [frames.frame(1, frames.CANCEL)],
    "a hello on a stream": [frames.frame(1, frames.HELLO, b"{}")],
    "an event that is no JSON": [frames.frame(1, frames.EVENT, b"{")],
    "an event that is no object": [frames.frame(1, frames.EVENT, b"[]")],
    "an event without a name": [frames.frame(1, frames.EVENT, b"{}")],
    "JSON without a bottom": [frames.frame(1, frames.EVENT, b"[" * 500_000)],
    "an end without a result": [frames.frame(1, frames.END, b"{}")],
    "too many events": [frames.frame(1, frames.EVENT, b'{"event":"x","fields":{"f":"%s"}}' % (b"x" * 500_000))] * 3,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_lie_of_the_agent_ends_the_link(name: str) -> None:
    mux, decoder = Mux(is_dialer=True), Decoder()
    assert mux.open("x", {}) == 1
    with pytest.raises(ProtocolError):
        mux.receive([frame for blob in HOSTILE[name] for frame in decoder.feed(blob)])


def test_the_control_an_honest_agent_is_believed() -> None:
    mux, decoder = Mux(is_dialer=True), Decoder()
    mux.open("x", {})
    blobs = [
        data(1, 0, 5),
        data(1, 5, 1),
        frames.offset_frame(1, frames.EOF, 1, 6),
        frames.frame(1, frames.END, b'{"result":{}}'),
    ]
    assert len([item for blob in blobs for item in mux.receive(decoder.feed(blob))]) == 4


def followed(ends: Ends, outbox: Outbox, cursor: int = 0) -> int:
    """A stream that follows an outbox whose owner is another one."""
    number = ends.dialer.open("follow", {}, offsets={1: cursor}, may_skip=True)
    ends.to(ends.acceptor)
    ends.acceptor.attach(number, 1, outbox, cursor=cursor, is_follower=True)
    return number


def data_of(items: list[tuple[int, Item]], number: int) -> list[tuple[int, int]]:
    return [(item.offset, len(item.payload)) for to, item in items if to == number and isinstance(item, Data)]


def test_a_followers_acknowledgement_frees_nothing_of_what_its_owner_has_not_read() -> None:
    ends, outbox = Ends(), Outbox()
    owner = opened(ends)
    ends.acceptor.attach(owner, 1, outbox)
    follower = followed(ends, outbox)
    outbox.append(bytes(1000))
    for number in (owner, follower):
        ends.acceptor.wake(number)
    assert data_of(ends.to(ends.dialer), follower) == [(0, 1000)]
    ends.dialer.ack(follower, 1, 1000)
    ends.to(ends.acceptor)
    assert (outbox.base, outbox.room) == (0, WINDOW - 1000)
    ends.dialer.ack(owner, 1, 1000)
    ends.to(ends.acceptor)
    assert (outbox.base, outbox.room) == (1000, WINDOW), "the control"


def test_a_follower_has_a_window_of_its_own_and_goes_on_where_the_rest_begins() -> None:
    ends, outbox = Ends(), Outbox()
    owner = opened(ends)
    ends.acceptor.attach(owner, 1, outbox)
    follower, got = followed(ends, outbox), list[tuple[int, int]]()
    for _ in range(6):  # the owner reads on, the follower does not
        outbox.append(bytes(WINDOW // 2))
        for number in (owner, follower):
            ends.acceptor.wake(number)
        got += data_of(ends.to(ends.dialer), follower)
        ends.dialer.ack(owner, 1, outbox.end)
        ends.to(ends.acceptor)
    assert sum(size for _, size in got) == WINDOW
    outbox.append(b"last")
    outbox.finish()
    ends.acceptor.wake(follower)
    assert data_of(ends.to(ends.dialer), follower) == []
    ends.dialer.ack(follower, 1, WINDOW)
    ends.to(ends.acceptor)
    items = ends.to(ends.dialer)
    assert data_of(items, follower) == [(3 * WINDOW, 4)]
    assert isinstance(items[-1][1], Finished)


def test_only_a_follower_may_be_given_less_than_everything() -> None:
    for may_skip, is_accepted in ((True, True), (False, False)):
        dialer = Mux(is_dialer=True)
        number = dialer.open("follow", {}, offsets={1: 0}, may_skip=may_skip)
        dialer.receive(Decoder().feed(frames.data_head(number, 1, 0, 1) + b"x"))
        dialer.ack(number, 1, 1)
        ahead = Decoder().feed(frames.data_head(number, 1, 500, 1) + b"y")
        if is_accepted:
            assert [item for _, item in dialer.receive(ahead)] == [Data(1, 500, b"y")]
        else:
            with pytest.raises(ProtocolError):
                dialer.receive(ahead)


@pytest.mark.parametrize("asked_from", [{}, {"_1": 0}])
def test_a_follower_skips_what_is_gone_whether_or_not_it_said_where_to_begin(asked_from: dict[str, int]) -> None:
    ends = Ends()
    offsets = {int(name[1:]): offset for name, offset in asked_from.items()}
    number = ends.dialer.open("follow", {}, offsets=offsets, may_skip=True)
    ends.to(ends.acceptor)
    outbox = Outbox()
    ends.acceptor.attach(number, 1, outbox, is_follower=True)
    outbox.append(b"a" * WINDOW)
    ends.acceptor.wake(number)
    assert sum(len(item.payload) for _, item in ends.to(ends.dialer) if isinstance(item, Data)) == WINDOW
    # Its reader goes on, and this one has not acknowledged anything.
    outbox.ack(WINDOW)
    outbox.append(b"b" * WINDOW)
    outbox.ack(2 * WINDOW)
    outbox.append(b"c")
    ends.dialer.ack(number, 1, WINDOW)
    ends.to(ends.acceptor)
    ends.acceptor.wake(number)
    assert ends.to(ends.dialer) == [(number, Data(1, 2 * WINDOW, b"c"))]


def test_data_that_uses_nothing_of_a_window_is_refused() -> None:
    ends = Ends()
    number = opened(ends)
    with pytest.raises(ProtocolError, match="without a byte"):
        ends.dialer.receive(Decoder().feed(frames.data_head(number, 1, 0, 0)))


def test_a_stream_has_only_so_many_channels_each_with_its_window() -> None:
    ends = Ends()
    number = opened(ends)
    said = b"".join(frames.data_head(number, channel, 0, 1) + b"x" for channel in range(1, 5))
    assert len(ends.dialer.receive(Decoder().feed(said))) == 4, "the control"
    with pytest.raises(ProtocolError, match="more than 4 channels"):
        ends.dialer.receive(Decoder().feed(frames.data_head(number, 5, 0, 1) + b"x"))


def test_a_message_that_fits_no_frame_costs_others_nothing() -> None:
    ends = Ends()
    first, second = opened(ends), opened(ends)
    ends.acceptor.event(second, "kept", {})
    with pytest.raises(ValueError, match="frame limit"):
        ends.acceptor.end(first, {"long": "x" * 2_000_000})
    ends.acceptor.fail(first, "internal", "it was too long")
    items = ends.to(ends.dialer)
    assert (second, Event("kept", {})) in items
    assert (first, Ended({}, ("internal", "it was too long"))) in items
