"""The commands for people and for logins, on the real server and in real sandboxes."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from pathlib import Path

import pytest

from k8e.client import SandboxClient
from tests.support.commands import K8E, Run, told
from tests.support.servers import Server

PATIENCE_S = 60.0


@pytest.fixture
def session(client: SandboxClient, tidy: None) -> str:
    return client.create_session("container")


@pytest.mark.parametrize("name", ["k8e-sandbox", "k8e-sandbox-cli"])
@pytest.mark.parametrize("extra", [[], ["sandbox"]], ids=["short", "with the extra word"])
def test_every_name_of_the_command_works(environ: dict[str, str], session: str, name: str, extra: list[str]) -> None:
    argv = [str(K8E.parent / name), *extra, "run", "--raw", "--session-id", session, "echo hi"]
    assert subprocess.run(argv, env=environ, capture_output=True, check=True).stdout == b"hi\n"


def test_a_tree_goes_in_and_comes_out_as_it_was(k8e: Run, session: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a dir" / "deep").mkdir(parents=True)
    (tree / "a dir" / "binary").write_bytes(os.urandom(1_000_003))
    (tree / os.fsdecode(b"odd-\xff-name")).write_text("x")
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o750)
    (tree / "link").symlink_to("a dir/binary")
    told(k8e("sandbox", "cp", str(tree), f"{session}:copy"))
    shown = k8e(
        "sandbox", "run", "--raw", "--session-id", session, "copy/run.sh; stat -c %a copy/run.sh; readlink copy/link"
    )
    assert shown.stdout == b"ran\n750\na dir/binary\n"
    told(k8e("sandbox", "cp", f"{session}:copy", str(tmp_path / "back")))
    assert (
        subprocess.run(["diff", "-r", "--no-dereference", str(tree), str(tmp_path / "back")], check=False).returncode
        == 0
    )
    assert (tmp_path / "back" / "run.sh").stat().st_mode & 0o777 == 0o750


def test_a_copy_out_leaves_what_points_elsewhere(k8e: Run, session: str, tmp_path: Path) -> None:
    k8e(
        "sandbox",
        "run",
        "--session-id",
        session,
        "mkdir out; ln -s /etc/passwd out/abs; ln -s ../../x out/up; echo y > out/f; mkfifo out/p",
    )
    done = k8e("sandbox", "cp", f"{session}:out", str(tmp_path / "out"))
    assert told(done)["files"] == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["f"]
    assert done.stderr.count(b"left out") == 3


def sleeps(client: SandboxClient, session_id: str) -> bool:
    return "sleep" in {each.comm for each in client.processes(session_id)}


def test_a_shell_is_a_real_terminal_of_the_session(
    client: SandboxClient, environ: dict[str, str], session: str
) -> None:
    master, slave = pty.openpty()
    argv = [str(K8E), "sandbox", "shell", session]
    with subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True
    ) as process:
        shown = b""
        os.write(master, b"stty size; tty; sleep 100\n")
        deadline = time.monotonic() + PATIENCE_S
        while b"/dev/pts/" not in shown:
            assert select.select([master], [], [], deadline - time.monotonic())[0], shown
            shown += os.read(master, 65536)
        while not sleeps(client, session):  # before it does, nobody would be there to be interrupted
            assert time.monotonic() < deadline, shown
        os.write(master, b"\x03")  # ends the sleep there, not the command here
        shown = b""
        while b"# " not in shown:  # what is typed while the shell cleans up after a signal may be thrown away
            assert select.select([master], [], [], deadline - time.monotonic())[0], shown
            shown += os.read(master, 65536)
        os.write(master, b"exit 9\n")
        while process.poll() is None:
            assert time.monotonic() < deadline, shown
            if select.select([master], [], [], 0.05)[0]:
                shown += os.read(master, 65536)
    os.close(slave)
    os.close(master)
    assert process.returncode == 9


def test_a_log_has_what_ran_and_following_it_ends_with_the_session(
    k8e: Run, environ: dict[str, str], session: str
) -> None:
    k8e("sandbox", "run", "--session-id", session, "echo first line")
    assert b"first line" in k8e("sandbox", "log", session).stdout
    assert len(k8e("sandbox", "log", session, "--limit", "5").stdout) <= 5
    k8e("sandbox", "run", "--session-id", session, "seq 30000")
    whole = k8e("sandbox", "log", session).stdout
    for count in (0, 1, 3, 20_000, 30_001, 30_003, 99_999):
        tail = b"".join(whole.splitlines(keepends=True)[-count:]) if count else b""
        assert k8e("sandbox", "log", session, "--tail", str(count)).stdout == tail
    for words in (["--tail", "-1"], ["--tail", "1", "--offset", "1"], ["--tail", "1", "--limit", "1"]):
        assert k8e("sandbox", "log", session, *words).returncode == 1
    argv = [str(K8E), "sandbox", "log", session, "--tail", "1", "--follow"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"30000\n"  # it has found the end
        k8e("sandbox", "run", "--session-id", session, "echo second line")
        while (line := process.stdout.readline()) != b"second line\n":
            assert line.startswith(b"$ ")
        k8e("sandbox", "destroy", session)
        assert process.wait(PATIENCE_S) == 0


def test_processes_events_and_usage_are_shown(k8e: Run, client: SandboxClient, session: str) -> None:
    k8e("sandbox", "run", "--background", "--session-id", session, "exec sleep 100")
    deadline = time.monotonic() + PATIENCE_S
    while not sleeps(client, session):
        assert time.monotonic() < deadline
    processes = told(k8e("sandbox", "ps", session))["processes"]
    assert isinstance(processes, list)
    assert {"comm": "sleep", "args": "sleep 100"}.items() <= processes[0].items()
    events = told(k8e("sandbox", "events", session))["events"]
    assert isinstance(events, list)
    assert events[0]["event"] == "session.created"
    listed = told(k8e("sandbox", "top", "--once", "--output", "json"))["sessions"]
    assert isinstance(listed, list)
    mine = next(each for each in listed if each["session_id"] == session)
    assert mine["memory_bytes"] > 0
    assert mine["processes"] > 0


def test_a_session_is_filled_from_a_manifest(k8e: Run, tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text("entries:\n  - dir: {path: d}\n  - file: {path: d/x.sh, content: 'echo $0', mode: 0755}\n")
    made = told(k8e("sandbox", "create", "--runtime", "container", "--manifest", str(manifest)))
    assert made["entries_materialized"] == 2
    shown = told(k8e("sandbox", "run", "--session-id", str(made["session_id"]), "stat -c %a d/x.sh; cat d/x.sh"))
    assert shown["stdout"] == "755\necho $0"


def test_a_login_from_another_machine_works_without_this_ones_files(k8e: Run, server: Server, tmp_path: Path) -> None:
    status = told(k8e("server", "status"))
    doors = status["doors"]
    assert isinstance(doors, dict)
    elsewhere = {
        "K8E_DATA_DIR": str(tmp_path / "nothing"),
        "K8E_SANDBOX_ENDPOINT": str(doors["grpc"]).partition("://")[2],
        "HOME": str(tmp_path / "home"),
    }
    made = told(k8e("sandbox-apikey", "create", "desk-test"))
    try:
        words = ["sandbox", "login", "--ca-fingerprint", str(status["ca_fingerprint"])]
        assert told(k8e(*words, K8E_SANDBOX_APIKEY=str(made["key"]), **elsewhere))["ok"] is True
        assert told(k8e("sandbox", "whoami", **elsewhere)) == {
            "owner": "key:desk-test",
            "identity": "key:desk-test",
            "role": "user",
            "via": "certificate",
        }
        ran = told(k8e("sandbox", "run", "echo from afar", **elsewhere))
        assert ran["stdout"] == "from afar\n"
        assert k8e("sandbox", "get", str(ran["session_id"])).returncode == 1  # another owner's
        k8e("sandbox", "destroy", str(ran["session_id"]), **elsewhere)
    finally:
        k8e("sandbox-apikey", "delete", "desk-test")
    revoked = k8e("sandbox", "whoami", **elsewhere)
    assert (revoked.returncode, json.loads(revoked.stdout)["error"]) == (2, "unauthenticated")
