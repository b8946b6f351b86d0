"""The audit trail of a real server: what callers did is there after `kill -9`, in a chain that is whole."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from k8e.audit import records, verify
from k8e.client import SandboxClient, retries
from k8e.client.errors import SandboxError
from tests.support.servers import Server

SECRET = "s3cr3t-of-a-test"
_PATIENCE_S = 60.0


def test_what_was_answered_is_recorded_and_survives_a_kill(mortal: Server) -> None:
    with SandboxClient(target=mortal.target()) as client:
        sid = client.create_session(runtime_class="container")
        assert client.exec(sid, f"echo {SECRET}", env={"TOKEN": SECRET}).stdout == f"{SECRET}\n"
        with pytest.raises(SandboxError):
            client.destroy_session("not-mine")
        client.destroy_session(sid)
    # A record is written a moment after its answer, and only what is written can survive.
    _until_recorded(mortal, "DestroySession", "OK")
    mortal.kill()
    assert verify(mortal.data_dir).ok
    mortal.start()
    kept = [each for each in records(mortal.data_dir) if each["outcome"] != "BEGUN"]
    about = [(each["rpc"], each.get("session_id"), each["outcome"]) for each in kept]
    assert about == [
        ("CreateSession", sid, "OK"),
        ("Exec", sid, "OK"),
        ("DestroySession", "not-mine", "NOT_FOUND"),
        ("DestroySession", sid, "OK"),
    ]
    assert {each["identity"] for each in kept} == {"uid:0"}
    assert verify(mortal.data_dir).ok
    whole = b"".join(path.read_bytes() for path in (mortal.data_dir / "audit").iterdir())
    assert SECRET.encode() not in whole


def test_refusals_that_were_counted_are_told_when_the_server_stops(mortal: Server) -> None:
    with SandboxClient(target=mortal.target()) as client:
        for _ in range(50):
            with pytest.raises(SandboxError):
                client.destroy_session("not-mine")
    mortal.stop()
    found = [each for each in records(mortal.data_dir) if each["outcome"] == "NOT_FOUND"]
    assert len(found) < 20
    assert sum(int(each.get("not_recorded", 1)) for each in found) == 50
    assert verify(mortal.data_dir).ok


def test_a_command_that_outlives_the_server_is_recorded_as_begun(
    mortal: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody starts the next server before the caller has given up.
    monkeypatch.setattr(retries, "BUDGET_S", 0.5)
    with SandboxClient(target=mortal.target()) as client, ThreadPoolExecutor(1) as elsewhere:
        sid = client.create_session(runtime_class="container")
        waiting = elsewhere.submit(client.exec, sid, "sleep 60", timeout=60)
        _until_recorded(mortal, "Exec", "BEGUN")
        mortal.kill()
        assert isinstance(waiting.exception(_PATIENCE_S), SandboxError)
    mortal.start()
    assert verify(mortal.data_dir).ok


def _until_recorded(server: Server, rpc: str, outcome: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while (rpc, outcome) not in [(each["rpc"], each["outcome"]) for each in records(server.data_dir)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
