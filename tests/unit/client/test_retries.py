"""What is asked again, and what never."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e import errors as server_errors
from k8e.client import AsyncSandboxClient
from k8e.client.errors import Conflict, Exhausted, NotFound, SandboxError, SandboxLost, ServerFailed, Unreachable
from k8e.client.retries import BUDGET_S, Patience, pause_s
from k8e.doors.service.call import Call
from tests.support.door import open_door


def decided(
    error: SandboxError, *, repeatable: bool = True, was_answered: bool = True, attempt: int = 0, waited_s: float = 0.0
) -> float | None:
    return pause_s(
        error, attempt=attempt, waited_s=waited_s, chance=0.5, repeatable=repeatable, was_answered=was_answered
    )


def unreachable(*, was_sent: bool) -> Unreachable:
    error = Unreachable("gone")
    error.was_sent = was_sent
    return error


def exhausted(retry_after_s: float | None) -> Exhausted:
    error = Exhausted("full")
    error.retry_after_s = retry_after_s
    return error


def test_what_may_have_run_is_never_asked_again_unless_that_changes_nothing() -> None:
    assert decided(unreachable(was_sent=True), repeatable=False) is None
    assert decided(unreachable(was_sent=True), repeatable=True) is not None
    assert decided(unreachable(was_sent=False), repeatable=False) is not None


def test_a_server_that_was_never_heard_from_is_not_waited_for() -> None:
    assert decided(unreachable(was_sent=False), was_answered=False) is None


def test_a_limit_is_waited_for_as_long_as_the_server_says_and_not_beyond_the_budget() -> None:
    pause = decided(exhausted(2.0), repeatable=False, was_answered=False)
    assert pause is not None
    assert 2.0 <= pause <= 2.5
    assert decided(exhausted(None)) is None
    assert decided(exhausted(BUDGET_S * 2)) is None
    assert decided(exhausted(2.0), waited_s=BUDGET_S - 1) is None


@pytest.mark.parametrize("error", [NotFound("x"), Conflict("x"), SandboxLost("x"), ServerFailed("x")])
def test_other_errors_are_answers(error: SandboxError) -> None:
    assert decided(error) is None


def test_pauses_grow_and_end() -> None:
    pauses = [decided(unreachable(was_sent=False), attempt=attempt) or 0.0 for attempt in range(8)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.1
    assert pauses[-1] <= 1.0
    assert decided(unreachable(was_sent=False), waited_s=BUDGET_S) is None


@pytest.fixture
def refused() -> list[str]:
    return []


@pytest.mark.anyio
async def test_a_call_that_comes_too_fast_is_made_again_and_happens_once(data_dir: Path, refused: list[str]) -> None:
    @contextlib.contextmanager
    def busy(name: str, call: Call, request: object) -> Iterator[None]:
        if name == "Exec" and len(refused) < 3:
            refused.append(name)
            raise server_errors.Exhausted("too fast", retry_after_s=0.01)
        yield

    async with (
        open_door(data_dir, steps=[busy]) as door,
        AsyncSandboxClient(target=door.target) as client,
        await client.create() as session,
    ):
        await session.exec("echo once >> count")
        assert await session.files.read("count") == "once\n"
    assert refused == ["Exec"] * 3


@pytest.mark.anyio
async def test_a_limit_without_a_time_is_told_at_once(data_dir: Path, refused: list[str]) -> None:
    @contextlib.contextmanager
    def full(name: str, call: Call, request: object) -> Iterator[None]:
        if name == "CreateSession":
            refused.append(name)
            raise server_errors.Exhausted("too many sessions: destroy one")
        yield

    async with open_door(data_dir, steps=[full]) as door, AsyncSandboxClient(target=door.target) as client:
        with pytest.raises(Exhausted, match="destroy one"):
            await client.create_session()
    assert refused == ["CreateSession"]


def test_the_attempts_themselves_use_up_patience_too() -> None:
    now = 100.0
    patience = Patience(lambda: now)
    now += 50.0  # before the first failure nothing was waited for
    assert patience.used_s() == 0.0
    now += 20.0
    assert patience.used_s() == 20.0
    now += 11.0
    assert decided(unreachable(was_sent=False), waited_s=patience.used_s()) is None
