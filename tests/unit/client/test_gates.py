"""Gated sessions through the SDK: asked for, seen, waited for and refused."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from k8e.client import Approval, Denied, Gates, SandboxClient
from k8e.client.discovery import Target
from k8e.client.errors import rebuilt
from k8e.client.transport import GATED_S, PERSON_S, QUICK_S, deadline

T = TypeVar("T")

GATES = Gates(egress=True, write_paths=("/workspace/deploy",), workspace=True, secrets=True, commands=("rm -rf",))


@pytest.fixture
def person(target: Target, client: SandboxClient) -> Iterator[SandboxClient]:
    """Somebody beside the client: another identity of the same owner."""
    made = client.create_api_key("person", role="approver", owner=client.whoami().owner)
    with SandboxClient(target=dataclasses.replace(target, api_key=made.key)) as beside:
        yield beside
    client.delete_api_key("person")


def answered(person: SandboxClient, work: Callable[[], T], *, approved: bool) -> tuple[Approval, T | Exception]:
    """What a call that waits was asked, and what became of it."""
    outcomes: list[T | Exception] = []

    def call() -> None:
        try:
            outcomes.append(work())
        except Denied as error:
            outcomes.append(error)

    waiting = threading.Thread(target=call)
    waiting.start()
    while not (asked := person.approvals()):
        assert waiting.is_alive()
    person.approve(asked[0].approval_id, approved, "looked at it")
    waiting.join()
    return asked[0], outcomes[0]


def test_a_session_says_its_gates_and_so_does_its_child(client: SandboxClient) -> None:
    with client.create(gates=GATES) as session, client.create() as free:
        assert session.info().gates == GATES
        child = client.subagent(session.session_id)
        assert client.get(child).gates == GATES
        assert free.info().gates == Gates()


def test_a_gated_call_goes_on_when_somebody_allows_it(client: SandboxClient, person: SandboxClient) -> None:
    with client.create(gates=GATES) as session:
        asked, size = answered(
            person, lambda: client.write_file(session.session_id, "deploy/app", "x" * 10), approved=True
        )
        assert asked.session_id == session.session_id
        assert 'write 10 bytes to "deploy/app"' in asked.action
        assert asked.is_gate
        assert size == 10
        _, hosts = answered(
            person, lambda: client.update_allowed_hosts(session.session_id, add=["a.example"]), approved=True
        )
        assert hosts == ["a.example"]


def test_a_refusal_names_the_question(client: SandboxClient, person: SandboxClient) -> None:
    with client.create(gates=GATES) as session:
        asked, error = answered(person, lambda: session.exec("rm -rf deploy"), approved=False)
        assert isinstance(error, Denied)
        assert error.approval_id == asked.approval_id
        assert "key:person" in str(error)
        assert session.exec("true").exit_code == 0


def test_a_call_waits_as_long_as_a_person_may_take() -> None:
    assert GATED_S == QUICK_S + PERSON_S
    assert (deadline(30) or 0) > 30 + PERSON_S
    assert deadline(0) is None


def test_an_error_that_no_person_caused_names_no_question() -> None:
    told = rebuilt("PERMISSION_DENIED", "denied", "no", approval_id="approval-1")
    assert isinstance(told, Denied)
    assert told.approval_id == "approval-1"
    other = rebuilt("PERMISSION_DENIED", "denied", "no")
    assert isinstance(other, Denied)
    assert other.approval_id == ""
