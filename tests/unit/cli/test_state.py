"""The session that commands share: one for every server and everybody one is there."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from k8e.cli import state
from k8e.cli.state import SharedSession
from k8e.client.errors import Conflict

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def shared(tmp_path: Path) -> Callable[[str], SharedSession]:
    return lambda account: SharedSession.of("", account, {"K8E_SANDBOX_CERT_DIR": str(tmp_path)})


def test_every_account_has_a_session_of_its_own(shared: Callable[[str], SharedSession]) -> None:
    assert shared("a").obtain(lambda: "of-a") == "of-a"
    assert shared("b").obtain(lambda: "of-b") == "of-b"
    assert (shared("a").current(), shared("b").current(), shared("c").current()) == ("of-a", "of-b", "")
    assert shared("a").obtain(lambda: "new", gone="of-a") == "new"
    assert shared("b").obtain(lambda: "unused") == "of-b"


def test_what_a_former_client_left_is_used_by_whoever_has_nothing_else(
    shared: Callable[[str], SharedSession], tmp_path: Path
) -> None:
    file = tmp_path / "default" / "state.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"session_id": "old", "phase": "active", "tenant_id": "", "created_at": ""}))
    assert shared("a").obtain(lambda: "unused") == "old"
    assert shared("b").obtain(lambda: "of-b", gone="old") == "of-b"  # it is another one's
    assert (shared("a").current(), shared("b").current()) == ("old", "of-b")
    assert json.loads(file.read_text())["session_id"] == "of-b"  # where a former client looks
    file.write_text(json.dumps({"session_id": "old", "phase": "creating"}))
    assert shared("a").current() == ""


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"phase": "active"}', '{"phase": "active", "accounts": 1}'])
def test_what_is_no_state_is_none(shared: Callable[[str], SharedSession], tmp_path: Path, text: str) -> None:
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "state.json").write_text(text)
    assert shared("a").obtain(lambda: "made") == "made"


def test_only_so_many_accounts_are_remembered(shared: Callable[[str], SharedSession]) -> None:
    for number in range(state.ACCOUNTS + 1):
        shared(str(number)).obtain(lambda: "made")
    assert (shared("0").current(), shared("1").current()) == ("", "made")


def test_a_session_is_forgotten_under_the_lock_and_no_other_one_with_it(
    shared: Callable[[str], SharedSession], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared("a").obtain(lambda: "of-a")
    shared("b").obtain(lambda: "of-b")
    monkeypatch.setattr(state, "LOCK_WAIT_S", 0.0)
    with (tmp_path / "default" / "state.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match="locked"):
            shared("").forget("of-a")
        shared("").forget("unknown")  # nothing to do, and nothing to wait for
    shared("").forget("of-b")
    assert (shared("a").current(), shared("b").current()) == ("of-a", "")
    shared("").forget("of-a")
    assert [each.name for each in (tmp_path / "default").iterdir()] == ["state.lock"]


def test_two_keys_and_two_ways_to_a_server_do_not_take_each_others_session(
    k8e: Run, environ: dict[str, str], server: Path
) -> None:
    doors = json.loads((server / "server" / "server.json").read_text())["doors"]
    ways = [{}, {"K8E_SANDBOX_ENDPOINT": doors["grpc"]}]
    for name in ("state-one", "state-two"):
        argv = [sys.executable, "-m", "k8e.cli.main", "sandbox-apikey", "create", name]
        made = subprocess.run(argv, env=environ, capture_output=True, check=True)
        ways.append({"K8E_SANDBOX_APIKEY": json.loads(made.stdout)["key"]})
    turns = [[json.loads(k8e("run", "true", **way).stdout)["session_id"] for way in ways] for _ in range(2)]
    assert turns[0] == turns[1]
    assert len(set(turns[0])) == 4
    assert json.loads(k8e("status").stdout)["session_id"] == turns[0][0]
    kept = (Path(environ["HOME"]) / ".k8e/sandbox/default/state.json").read_text()
    assert not any(way.get("K8E_SANDBOX_APIKEY", "-") in kept for way in ways[2:])
