"""`allow-hosts` and the flags of a session's network, as whole processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def _lines(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, object]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_list_is_shown_and_changed(k8e: Run) -> None:
    (made,) = _lines(k8e("create", "--allowed-hosts", "A.example, b.example"))
    session = ("--session-id", str(made["session_id"]))
    changes = [
        ([], ["a.example", "b.example"]),
        (["--add", "c.example:22,*.d.example", "--remove", "a.example"], ["b.example", "c.example:22", "*.d.example"]),
        (["e.example"], ["e.example"]),
        (["--hosts", "f.example,!g.example"], ["f.example", "!g.example"]),
        (["--clear"], []),
    ]
    for words, expected in changes:
        (told,) = _lines(k8e("allow-hosts", *words, *session))
        assert told == {"session_id": made["session_id"], "allowed_hosts": expected}


def test_a_session_that_is_named_first_is_shown_or_changed_and_never_taken_for_a_host(k8e: Run) -> None:
    (shared,) = _lines(k8e("run", "--allowed-hosts", "kept.example", "true"))
    (made,) = _lines(k8e("create", "--allowed-hosts", "a.example"))
    (own,) = _lines(k8e("create", "--session-id", "own.box", "--allowed-hosts", "a.example"))
    for session_id in (str(made["session_id"]), str(own["session_id"])):
        for words, expected in (
            ([], ["a.example"]),
            (["--add", "b.example"], ["a.example", "b.example"]),
            (["c.example"], ["c.example"]),
        ):
            (told,) = _lines(k8e("allow-hosts", session_id, *words))
            assert told == {"session_id": session_id, "allowed_hosts": expected}
    (told,) = _lines(k8e("allow-hosts"))
    assert told == {"session_id": shared["session_id"], "allowed_hosts": ["kept.example"]}


@pytest.mark.parametrize(
    ("words", "error", "part"),
    [
        (["sess-none"], "not found", "sess-none"),
        (["box"], "invalid request", "--hosts box"),
        ([""], "invalid request", "k8e sandbox sessions"),
        (["--add", "sess-none"], "invalid request", "name the session first"),
        (["--hosts", "a.example,!sess-none:22"], "invalid request", "name the session first"),
        (["sess-none", "sess-none"], "invalid request", "name the session first"),
        (["sess-none", "--session-id", "sess-other"], "invalid request", "name one"),
        (["a.example", "b.example"], "invalid request", "a.example,b.example"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_word_that_may_be_a_session_never_changes_the_shared_list(
    k8e: Run, words: list[str], error: str, part: str
) -> None:
    k8e("run", "--allowed-hosts", "kept.example", "true")
    done = k8e("allow-hosts", *words)
    (told,) = _lines(done)
    assert (done.returncode, told["error"]) == (1, error)
    assert part in str(told["detail"])
    (shown,) = _lines(k8e("allow-hosts"))
    assert shown["allowed_hosts"] == ["kept.example"]


def test_a_host_without_a_domain_can_be_said_to_be_one(k8e: Run) -> None:
    (told,) = _lines(k8e("allow-hosts", "--hosts", "box"))
    assert told["allowed_hosts"] == ["box"]


def test_a_server_that_names_no_default_list_is_not_taken_to_allow_nothing(k8e: Run) -> None:
    (made,) = _lines(k8e("create", "--allowed-hosts", "a.example"))
    session_id = str(made["session_id"])
    refused = k8e("allow-hosts", session_id, "--defaults")
    assert (refused.returncode, _lines(refused)[0]["error"]) == (2, "not supported")
    assert k8e("allow-hosts", session_id, "--defaults", "--clear").returncode == 1
    (shown,) = _lines(k8e("allow-hosts", session_id))
    assert shown["allowed_hosts"] == ["a.example"]


def test_the_list_is_also_a_table(k8e: Run) -> None:
    (made,) = _lines(k8e("create", "--allowed-hosts", "a.example,b.example:22"))
    table = k8e("allow-hosts", str(made["session_id"]), "--output", "table").stdout
    assert table.splitlines() == [b"HOST", b"a.example", b"b.example:22"]


def test_the_shared_session_has_a_list_too(k8e: Run) -> None:
    (shared,) = _lines(k8e("run", "true"))
    (told,) = _lines(k8e("allow-hosts", "--add", "a.example"))
    assert told == {"session_id": shared["session_id"], "allowed_hosts": ["a.example"]}


def test_run_can_give_the_session_a_list_first(k8e: Run) -> None:
    (ran,) = _lines(k8e("run", "--allowed-hosts", "a.example,b.example:22", "echo done"))
    (told,) = _lines(k8e("allow-hosts"))
    assert ran["stdout"] == "done\n"
    assert told == {"session_id": ran["session_id"], "allowed_hosts": ["a.example", "b.example:22"]}


@pytest.mark.parametrize(
    "words",
    [["--clear", "--add", "a.example"], ["a.example", "--clear"], ["--add", "*.com"], ["--remove", "x.example"]],
)
def test_a_bad_change_is_bad_input(k8e: Run, words: list[str]) -> None:
    done = k8e("allow-hosts", *words)
    assert done.returncode == 1
    (told,) = _lines(done)
    assert told["error"] == "invalid request"


def test_networks_and_caps_are_asked_for_by_flags(k8e: Run) -> None:
    (made,) = _lines(k8e("create", "--network", "none", "--connections", "3", "--network-bytes", "1000"))
    (shown,) = _lines(k8e("get", str(made["session_id"])))
    limits = shown["limits"]
    assert isinstance(limits, dict)
    assert (shown["network"], limits["connections"], limits["network_bytes_per_s"]) == ("none", 3, 1000)
    refused = k8e("create", "--network", "open")
    assert (refused.returncode, _lines(refused)[0]["error"]) == (2, "not allowed")
