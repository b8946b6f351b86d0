"""Which form of MCP a request speaks, and when its client is gone."""

from __future__ import annotations

import asyncio

import pytest
from starlette.datastructures import Headers

from k8e.web.presence import Patience, Presence
from k8e.web.routing import Form, form_of
from tests.support.clock import Clock

BOTH = "application/json, text/event-stream"


@pytest.mark.parametrize(
    ("method", "headers", "form"),
    [
        ("GET", {}, Form.STREAM),
        ("GET", {"accept": "text/event-stream"}, Form.STREAM),
        ("GET", {"accept": "text/event-stream", "mcp-session-id": "a"}, Form.KNOWN),
        ("GET", {"accept": "text/event-stream", "mcp-protocol-version": "2026-07-28"}, Form.MODERN),
        ("POST", {"accept": BOTH}, Form.OPENING),
        ("POST", {"accept": "Text/Event-Stream"}, Form.OPENING),
        ("POST", {"accept": BOTH, "mcp-protocol-version": "2025-11-25"}, Form.OPENING),
        ("POST", {"accept": BOTH, "mcp-protocol-version": "2026-07-28"}, Form.MODERN),
        ("POST", {"accept": BOTH, "mcp-protocol-version": "2099-01-01"}, Form.MODERN),
        ("POST", {"accept": "*/*"}, Form.PLAIN),
        ("POST", {}, Form.PLAIN),
        ("POST", {"mcp-session-id": "a"}, Form.KNOWN),
        ("DELETE", {"mcp-session-id": "a"}, Form.KNOWN),
        ("DELETE", {}, Form.NONE),
    ],
)
def test_a_requests_form_is_told_by_its_method_and_headers(method: str, headers: dict[str, str], form: Form) -> None:
    assert form_of(method, Headers(headers)) is form


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def presence(clock: Clock) -> Presence:
    return Presence(Patience(grace_s=60, idle_s=1800), clock=clock)


def test_a_client_is_here_while_anything_of_it_is_open(presence: Presence, clock: Clock) -> None:
    with presence.here():
        with presence.here(is_stream=True):
            clock.now += 10_000
            assert presence.left_s() is None
        assert presence.left_s() is None
    assert presence.left_s() == 60


def test_a_client_waits_for_answers_and_not_for_streams(presence: Presence) -> None:
    waits = []
    with presence.here(is_stream=True):
        waits.append(presence.is_waiting)
        with presence.here():
            waits.append(presence.is_waiting)
        waits.append(presence.is_waiting)
    assert waits == [False, True, False]


def test_without_a_stream_a_client_may_think_for_longer(presence: Presence, clock: Clock) -> None:
    with presence.here():
        pass
    clock.now += 300
    assert presence.left_s() == 1500


def test_coming_back_begins_anew(presence: Presence, clock: Clock) -> None:
    with presence.here(is_stream=True):
        pass
    clock.now += 59
    assert presence.left_s() == 1
    with presence.here():
        pass
    assert presence.left_s() == 60


@pytest.mark.anyio
async def test_whoever_waits_for_the_end_hears_of_it() -> None:
    presence = Presence(Patience(grace_s=0, idle_s=1800))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        with presence.here(is_stream=True):
            gone = group.create_task(presence.gone(), name="gone")
            await asyncio.sleep(0)
            assert not gone.done()
