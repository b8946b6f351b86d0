"""`allow-hosts`, `egress` and what `run` says about hosts that it could not reach, as whole processes."""

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


def test_decisions_are_one_line_each(k8e: Run) -> None:
    (made,) = _lines(k8e("create"))
    session_id = str(made["session_id"])
    assert [each["verdict"] for each in _lines(k8e("egress", session_id))] == ["allowed", "closed"]
    followed = _lines(k8e("egress", session_id, "--limit", "1", "--follow"))
    assert [each["verdict"] for each in followed] == ["closed", "denied"]
    assert followed[0]["name"] == "a.example"


def test_run_tells_an_agent_which_host_to_ask_for(k8e: Run) -> None:
    (plain,) = _lines(k8e("run", "true"))
    assert "egress_denied" not in plain
    (told,) = _lines(k8e("run", "echo denied a.example:443"))
    assert told["egress_denied"] == [{"host": "a.example", "port": 443, "reason": "not on the session's list"}]
    raw = k8e("run", "--raw", "echo denied a.example:443")
    assert raw.stderr == b"k8e: could not reach a.example:443: not on the session's list\n"
