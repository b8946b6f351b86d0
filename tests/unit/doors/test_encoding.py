"""Large answers: encoded in pieces that together are the message, cut where they do not fit, owners in turns."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from google.protobuf import json_format

from k8e._proto import sandbox_pb2 as pb
from k8e.byte_budget import ByteBudget, ByteReservation
from k8e.doors.service import encoding
from k8e.doors.service.encoding import (
    JSON,
    PROTO,
    Encoding,
    FairWorker,
    LargeAnswer,
    encoded,
    in_one,
    in_pieces,
    joined,
    text,
)
from k8e.doors.service.execs import contents
from k8e.errors import Exhausted, InvalidSpec
from k8e.model import MIB

pytestmark = pytest.mark.anyio

TEXTS = {
    "ascii": b'plain "quoted" \\ \n\t\x01' * 30_000,
    "utf-8": "äöü – 𝄞\u2028".encode() * 30_000,
    "binary": bytes(range(256)) * 2000,
    "cut character": ("x" * 500_000 + "ä").encode()[:-1],
    "empty": b"",
}


def _reservation(most: int = 1 << 40) -> ByteReservation:
    return ByteBudget(per_owner=most, total=most).open("somebody")


def _read(form: Encoding, data: bytes) -> pb.ExecResponse:
    if form is PROTO:
        return pb.ExecResponse.FromString(data)
    return json_format.Parse(data, pb.ExecResponse())


@pytest.mark.parametrize("form", [PROTO, JSON], ids=["proto", "json"])
@pytest.mark.parametrize("out", TEXTS)
@pytest.mark.parametrize("err", ["empty", "binary"])
def test_pieces_together_are_the_message(form: Encoding, out: str, err: str) -> None:
    small = pb.ExecResponse(exit_code=3, session_id="s", status="completed", detail="ü")
    answer = LargeAnswer(small, contents({"stdout": TEXTS[out], "stderr": TEXTS[err]}))
    whole = _read(form, joined(in_pieces(answer, form, _reservation())))
    assert (whole.exit_code, whole.session_id, whole.detail, whole.truncated) == (3, "s", "ü", False)
    assert (whole.stdout_bytes or whole.stdout.encode()) == TEXTS[out]
    assert (whole.stderr_bytes or whole.stderr.encode()) == TEXTS[err]
    assert whole.stdout == TEXTS[out].decode("utf-8", "replace")
    assert joined(in_pieces(answer, form, _reservation())) == in_one(answer, form, _reservation())


def test_json_is_as_protobuf_itself_would_write_it() -> None:
    small = pb.ExecResponse(exit_code=3)
    answer = LargeAnswer(small, text("stdout", TEXTS["utf-8"]))
    ours = json.loads(joined(in_pieces(answer, JSON, _reservation())))
    whole = pb.ExecResponse(exit_code=3, stdout=TEXTS["utf-8"].decode())
    theirs = json_format.MessageToDict(
        whole, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    assert ours == theirs


def test_a_message_of_content_alone_is_json_too() -> None:
    answer = LargeAnswer(pb.ReadFileResponse(), contents({"content": TEXTS["binary"]}), can_be_cut=False)
    read = json_format.Parse(joined(in_pieces(answer, JSON, _reservation())), pb.ReadFileResponse())
    assert read.content_bytes == TEXTS["binary"]


@pytest.mark.parametrize("form", [PROTO, JSON], ids=["proto", "json"])
def test_what_does_not_fit_a_message_is_cut_and_said_so(form: Encoding) -> None:
    answer = LargeAnswer(pb.ExecResponse(), contents({"stdout": b"\x01" * (40 * MIB), "stderr": b"x" * (40 * MIB)}))
    data = joined(in_pieces(answer, form, _reservation()))
    assert len(data) <= 64 * MIB
    whole = _read(form, data)
    assert whole.truncated
    assert whole.stdout.startswith("\x01" * 1000)
    fits = LargeAnswer(pb.ExecResponse(), contents({"stdout": b"x" * (40 * MIB)}))
    assert not _read(form, joined(in_pieces(fits, form, _reservation()))).truncated


def test_of_binary_output_the_text_is_cut_before_the_bytes() -> None:
    data = b"\xff" * (40 * MIB)
    whole = _read(
        PROTO, joined(in_pieces(LargeAnswer(pb.ExecResponse(), contents({"stdout": data})), PROTO, _reservation()))
    )
    assert whole.stdout_bytes == data
    assert not whole.truncated, "nothing is missing for who reads the bytes"
    assert 0 < len(whole.stdout) < 40 * MIB


def test_an_owner_that_holds_too_much_gets_less_or_a_refusal() -> None:
    short = _reservation(MIB)
    answer = LargeAnswer(pb.ExecResponse(), contents({"stdout": b"x" * (4 * MIB)}))
    whole = _read(JSON, joined(in_pieces(answer, JSON, short)))
    assert whole.truncated
    assert len(whole.stdout) <= MIB
    file = LargeAnswer(pb.ReadFileResponse(), contents({"content": b"x" * (4 * MIB)}), can_be_cut=False)
    with pytest.raises(Exhausted, match="hold too much memory"):
        in_pieces(file, JSON, short)
    assert in_pieces(file, JSON, _reservation(5 * MIB))


def test_a_file_that_fits_no_message_is_the_requests_fault_and_binary_ones_fit_without_their_text() -> None:
    text_file = LargeAnswer(pb.ReadFileResponse(), contents({"content": b"x" * (65 * MIB)}), can_be_cut=False)
    with pytest.raises(InvalidSpec, match=r"larger than one message .* use a stream"):
        in_pieces(text_file, PROTO, _reservation())
    binary = LargeAnswer(pb.ReadFileResponse(), contents({"content": b"\xff" * (40 * MIB)}), can_be_cut=False)
    read = pb.ReadFileResponse.FromString(in_one(binary, PROTO, _reservation()))
    assert read.content_bytes == b"\xff" * (40 * MIB)


def test_what_is_there_twice_is_counted_twice() -> None:
    data = b"\xff" * (4 * MIB)
    budget = ByteBudget()
    for is_joined, at_least, at_most in ((False, 11, 13), (True, 15, 17)):
        reservation = budget.open("o")
        in_pieces(LargeAnswer(pb.ExecResponse(), contents({"stdout": data})), PROTO, reservation, to_join=is_joined)
        # Three bytes of text for each that is none; the bytes themselves were counted when they were captured.
        assert at_least * MIB <= budget.held() <= at_most * MIB
        reservation.close()
    assert budget.held() == 0


async def test_an_answer_whose_caller_leaves_holds_nothing_afterwards() -> None:
    budget, worker = ByteBudget(), FairWorker()
    answer = LargeAnswer(pb.ExecResponse(), contents({"stdout": b"x" * (30 * MIB)}))
    for _ in range(5):
        reservation = budget.open("o")
        sending = asyncio.ensure_future(encoded(answer, JSON, worker=worker, owner="o", reservation=reservation))
        await asyncio.sleep(0.005)
        sending.cancel()
        reservation.close()
    await worker.run("o", lambda: None)  # behind all of them
    assert budget.held() == 0


async def test_every_owner_has_a_floor_however_much_others_hold() -> None:
    budget = ByteBudget(per_owner=100, total=150, floor=10)
    assert budget.open("a").grow(100)
    assert budget.open("b").grow(50)
    quiet = budget.open("c")
    assert quiet.grow(10)
    assert not quiet.grow(1)


def test_counting_from_two_threads_loses_nothing() -> None:
    budget = ByteBudget(per_owner=1 << 40, total=1 << 40)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def count() -> None:
            for _ in range(20_000):
                reservation = budget.open("o")
                reservation.grow(3)
                reservation.close()

        threads = [threading.Thread(target=count) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert budget.held() == 0
    assert not budget.open("o").grow((1 << 40) + 1)


async def test_long_lists_are_encoded_off_the_loop_and_short_messages_on_it() -> None:
    threads = []

    class Noting(encoding.Proto):
        def message(self, message: Any) -> bytes:
            threads.append(threading.current_thread())
            return PROTO.message(message)

    send = functools.partial(encoded, encoding=Noting(), worker=FairWorker(), owner="o", reservation=_reservation())
    await send(pb.ListFilesResponse(files=[pb.FileEntry(path="x")] * 3))
    await send(pb.ListFilesResponse(files=[pb.FileEntry(path="x")] * 3000))
    await send(pb.GetTranscriptResponse(output="x" * MIB))
    here = threading.current_thread()
    assert [thread is here for thread in threads] == [True, False, False]


async def test_answers_that_are_not_taken_are_counted_until_they_are() -> None:
    budget = ByteBudget(per_owner=3 * MIB, total=5 * MIB, floor=0)
    page = pb.GetTranscriptResponse(output="x" * (2 * MIB))
    send = functools.partial(encoded, page, PROTO, worker=FairWorker())
    first, second, other, third = (budget.open(name) for name in ("a", "a", "b", "c"))
    await send(owner="a", reservation=first)
    with pytest.raises(Exhausted, match="it was done, but its answer"):
        await send(owner="a", reservation=second)
    await send(owner="b", reservation=other)
    with pytest.raises(Exhausted):
        await send(owner="c", reservation=third)  # of all together
    first.close()
    await send(owner="a", reservation=second)


async def test_owners_take_turns_and_a_caller_that_leaves_holds_up_nobody() -> None:
    worker, done, go = FairWorker(), list[str](), threading.Event()

    def work(name: str) -> None:
        go.wait(60)
        done.append(name)

    async with asyncio.TaskGroup() as group:
        greedy = [group.create_task(worker.run("greedy", functools.partial(work, f"greedy {n}"))) for n in range(5)]
        await asyncio.sleep(0)
        group.create_task(worker.run("quiet", functools.partial(work, "quiet")))
        await asyncio.sleep(0)
        greedy[2].cancel()
        go.set()
    assert done == ["greedy 0", "greedy 1", "quiet", "greedy 3", "greedy 4"] or done.index("quiet") <= 2
    assert "greedy 2" not in done


async def test_work_whose_caller_leaves_ends_before_the_next_begins() -> None:
    worker, go, is_in = FairWorker(), threading.Event(), threading.Event()
    running = 0

    def long() -> None:
        nonlocal running
        running += 1
        is_in.set()
        go.wait(60)
        running -= 1

    first = asyncio.ensure_future(worker.run("o", long))
    await asyncio.to_thread(is_in.wait, 60)
    first.cancel()
    second = asyncio.ensure_future(worker.run("o", lambda: running))
    await asyncio.sleep(0.05)
    assert not second.done()
    go.set()
    assert await second == 0


def _pieces(pieces: Iterable[encoding.Piece]) -> bytes:
    return b"".join(pieces)


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_exact_or_has_its_bytes_beside_it(name: str) -> None:
    data = TEXTS[name]
    fields = text("stdout", data)
    assert _pieces(fields["stdout"]).decode() == data.decode("utf-8", "replace")
    assert ("stdout_bytes" in fields) == (data.decode("utf-8", "replace").encode() != data)


def test_much_of_anything_is_long() -> None:
    deep = pb.ListSessionsResponse(
        sessions=[pb.GetSessionResponse(session_id="s", allowed_hosts=["h" * 100] * 100) for _ in range(50)]
    )
    assert deep.ByteSize() > encoding.LARGE_BYTES
    assert encoding.is_long(deep)
    assert not encoding.is_long(pb.ListSessionsResponse(sessions=deep.sessions[:10]))
