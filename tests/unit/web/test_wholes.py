"""Answers of the library's streams: whole where nothing is said before them."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest

from k8e.web.wholes import whole_where_possible

pytestmark = pytest.mark.anyio

ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"method":"no method of its own"}}'
PROGRESS = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"id":1,"result":{}}}'
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"mcp-session-id", b"abc"),
    (b"cache-control", b"no"),
]


def event(data: bytes) -> bytes:
    return b"event: message\r\ndata: " + data + b"\r\n\r\n"


async def passed(headers: list[tuple[bytes, bytes]], *bodies: bytes) -> tuple[dict[bytes, bytes], list[bytes]]:
    """What a client gets of an answer's head and pieces."""
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    sending = whole_where_possible(send)
    await sending({"type": "http.response.start", "status": 200, "headers": headers})
    for body in bodies:
        await sending({"type": "http.response.body", "body": body, "more_body": True})
    await sending({"type": "http.response.body", "body": b"", "more_body": False})
    assert [each["type"] for each in sent[:2]] == ["http.response.start", "http.response.body"]
    assert not sent[-1].get("more_body", False)
    return dict(sent[0]["headers"]), [each["body"] for each in sent[1:]]


async def test_an_answer_that_comes_first_is_whole() -> None:
    headers, bodies = await passed(HEADERS, event(ANSWER))
    assert bodies == [ANSWER]
    assert headers == {
        b"mcp-session-id": b"abc",
        b"content-type": b"application/json",
        b"content-length": str(len(ANSWER)).encode(),
    }


@pytest.mark.parametrize("first", [event(PROGRESS), b": ping - 2026\r\n\r\n", event(b"[]"), b"", event(ANSWER)[:-1]])
async def test_whatever_else_comes_first_leaves_it_a_stream(first: bytes) -> None:
    headers, bodies = await passed(HEADERS, first, event(ANSWER))
    assert headers == dict(HEADERS)
    assert bodies == [first, event(ANSWER), b""]


async def test_what_is_no_stream_stays_as_it_is() -> None:
    plain = [(b"content-type", b"application/json")]
    assert await passed(plain, event(ANSWER)) == (dict(plain), [event(ANSWER), b""])
