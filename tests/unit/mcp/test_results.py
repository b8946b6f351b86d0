"""What a model reads when something goes wrong: the text, and what to do next."""

from __future__ import annotations

import json

import pytest

from k8e.client import EgressDenial, Exit
from k8e.client import errors as sdk
from k8e.mcp.results import denied, failed, more_memory, told, unusual, visible, with_notes
from tests.support.mcp_wire import first_text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (sdk.NotFound("session s not found"), "sandbox_create_session"),
        (sdk.NotFound("file /workspace/x not found"), "sandbox_list_files"),
        (sdk.NotFound("approval a not found"), "without approval_id"),
        (sdk.SandboxLost("the sandbox died"), "make another session"),
        (sdk.Exhausted("the owner has 500 sessions"), "sandbox_destroy_session"),
        (sdk.Denied("only administrators"), "tell the user"),
        (sdk.Unauthenticated("unknown key"), "K8E_SANDBOX_APIKEY"),
        (sdk.DeadlineExceeded("no answer in time"), "longer timeout"),
        (sdk.Unreachable("no answer"), "k8e server"),
        (sdk.InvalidRequest("code: is required"), "Fix the argument"),
        (sdk.Unsupported("no such runtime"), "k8e doctor"),
        (sdk.ServerFailed("internal error"), "server's log"),
        (sdk.Conflict("it is paused"), "state"),
        (sdk.SandboxError("something new"), "look at the text"),
    ],
)
def test_every_error_says_what_to_do_next(error: sdk.SandboxError, words: str) -> None:
    result = failed(error)
    text = first_text(result.content)
    assert result.is_error
    assert text.startswith(str(error))
    assert words.lower() in text.lower()


def test_a_limit_of_calls_says_how_long_to_wait() -> None:
    error = sdk.Exhausted("too many calls at once")
    error.retry_after_s = 1.5
    assert "Try again in 1.5 s." in first_text(failed(error).content)


def test_a_refusal_at_a_gate_says_that_a_person_has_to_allow_it() -> None:
    error = sdk.Denied("nobody approved it in time: deploy")
    assert "A person has to allow this" not in first_text(failed(error).content)
    error.approval_id = "approval-1"
    assert "A person has to allow this" in first_text(failed(error).content)


def test_a_text_that_says_it_already_is_not_told_twice() -> None:
    text = first_text(failed(sdk.Unreachable(f"no answer. {sdk.Unreachable.remedy}")).content)
    assert text.count(sdk.Unreachable.remedy) == 1


def test_nothing_is_said_where_nothing_is_unusual() -> None:
    assert unusual(Exit(exit_code=0, status="completed")) == {}
    assert denied(()) == {}
    assert with_notes({"exit_code": 0}, "", "") == {"exit_code": 0}


def test_an_end_that_the_exit_code_does_not_explain_is_explained() -> None:
    killed = Exit(exit_code=137, status="failed", reason="oom_killed", detail="512 MiB")
    assert unusual(killed) == {"status": "failed", "reason": "oom_killed", "detail": "512 MiB"}
    late = Exit(exit_code=124, status="timed_out")
    assert with_notes(unusual(late), "More.")["note"] == "The time was over; give a longer timeout. More."
    hostile = Exit(exit_code=126, status="failed", reason="not_started", detail="\x01" * 4096)
    assert len(json.dumps(unusual(hostile))) < 2500


@pytest.mark.parametrize(
    ("limit_mib", "is_sure", "words"),
    [
        (512, True, ("Out of memory: the session has 512 MiB.", "sandbox_create_session with memory_mib 2048,")),
        (4096, True, ("the session has 4096 MiB.", "memory_mib 16384,")),
        (512, False, ("Killed, most likely because it was out of memory: the session has 512 MiB.",)),
        (0, True, ("Out of memory. Use less,",)),
    ],
)
def test_out_of_memory_names_the_limit_and_the_way_to_more(limit_mib: int, is_sure: bool, words: tuple[str]) -> None:
    said = more_memory(limit_mib * 2**20, is_sure=is_sure)
    assert all(each in said for each in words)


def test_refused_hosts_are_named_once_in_the_way_to_get_them() -> None:
    found = denied(
        [EgressDenial(host="b.example", port=443), EgressDenial(host="b.example"), EgressDenial(host="a.example")]
    )
    assert len(found["egress_denied"]) == 3
    assert '["a.example", "b.example"]' in found["egress_fix"]


def test_names_that_are_not_text_are_shown() -> None:
    assert visible("a\udcff") == "a\ufffd"
    assert told({"path": visible("a\udcff")}).structured_content == {"path": "a\ufffd"}
