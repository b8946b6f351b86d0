"""The error table, both ways."""

from __future__ import annotations

import grpc
import pytest

from k8e import errors
from k8e.client import errors as seen
from k8e.doors.service.errors import TABLE, answer_for, single

CASES = [
    (errors.InvalidSpec("bad", field="env"), seen.InvalidRequest),
    (errors.NotFound("session", "s"), seen.NotFound),
    (errors.Conflict("busy"), seen.Conflict),
    (errors.Unauthenticated("who"), seen.Unauthenticated),
    (errors.Denied("no"), seen.Denied),
    (errors.Exhausted("full", retry_after_s=2), seen.Exhausted),
    (errors.HostUnsupported("no kvm"), seen.Unsupported),
    (errors.SandboxLost("gone"), seen.SandboxLost),
    (errors.SandboxFailed("mount", "EIO"), seen.ServerFailed),
    (errors.StoreFailed("damaged"), seen.ServerFailed),
    (errors.DiskFull("/data"), seen.Exhausted),
]


@pytest.mark.parametrize(("error", "kind"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_an_error_is_rebuilt_as_the_class_with_the_same_remedy(
    error: errors.K8eError, kind: type[seen.SandboxError]
) -> None:
    code, text, trailing = answer_for(error)
    rebuilt = seen.rebuilt(code, dict(trailing)["k8e-error"], text)
    assert type(rebuilt) is kind
    assert str(rebuilt) == str(error)


def test_every_error_of_ours_and_every_word_has_its_row() -> None:
    assert {type(error) for error, _ in CASES} | {errors.K8eError} == set(TABLE)
    assert {word for _, word in TABLE.values()} == set(seen.BY_WORD)


def test_every_failing_code_of_grpc_has_a_class_except_cancellation() -> None:
    assert {code.name for code in grpc.StatusCode} - set(seen.BY_CODE) == {"OK", "CANCELLED"}


def test_an_unknown_code_is_the_root_class() -> None:
    assert type(seen.rebuilt("CANCELLED", "", "x")) is seen.SandboxError


def test_every_code_is_one_of_grpcs() -> None:
    assert {code for code, _ in TABLE.values()} <= {code.name for code in grpc.StatusCode}


def test_only_a_lost_sandbox_makes_clients_throw_their_session_away() -> None:
    gone = {"UNAVAILABLE", "FAILED_PRECONDITION"}
    assert [kind for kind, (code, _) in TABLE.items() if code in gone] == [errors.SandboxLost]


def test_names_that_are_not_text_are_shown_in_errors() -> None:
    _, text, _ = answer_for(errors.NotFound("file", "a\udcff"))
    assert text == "file a\N{REPLACEMENT CHARACTER} not found"


def test_a_group_of_one_is_its_only_member() -> None:
    inner = errors.Conflict("x")
    assert single(ExceptionGroup("", [ExceptionGroup("", [inner])])) is inner
