"""`kill -9` of the server while everything runs: commands do not notice, and nothing they said is lost."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from k8e.client import SandboxClient
from k8e.client.errors import SandboxError
from k8e.client.values import Chunk, Exit
from k8e.model import Runtime
from k8e.setup.provision import Provisioned, _keep_notes
from tests.support.engines import RUNTIMES
from tests.support.servers import NO_POOL, Server

_LINES = 200_000
_COMMANDS = 20
_PATIENCE_S = 60.0


def _client(server: Server) -> SandboxClient:
    return SandboxClient(target=server.target())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runtime", RUNTIMES, ids=str)
def test_background_runs_survive_with_complete_output_and_true_exit_codes(mortal: Server, runtime: Runtime) -> None:
    with _client(mortal) as client:
        sid = client.create_session(runtime_class=runtime)
        command = f"seq {_LINES}; until [ -e /workspace/go ]; do sleep 0.05; done; echo tail; exit $CODE"
        runs = {client.start_run(sid, command, env={"CODE": str(number)}): number for number in range(_COMMANDS)}
    mortal.kill()
    mortal.start()
    with _client(mortal) as client:
        assert [view.session_id for view in client.sessions()] == [sid]
        assert {view.run_id for view in client.runs(sid)} == set(runs)
        client.write_file(sid, "/workspace/go", "")
        for run_id, number in runs.items():
            output, end = b"", None
            for item in client.attach_run(run_id):
                if isinstance(item, Chunk):
                    assert item.offset == len(output)
                    output += item.data
                else:
                    end = item
            assert isinstance(end, Exit)
            assert (end.exit_code, end.status) == (number, "completed"), end
            assert output == b"".join(b"%d\n" % n for n in range(1, _LINES + 1)) + b"tail\n"


def test_a_run_whose_end_was_not_yet_written_down_still_has_it_after_a_death(mortal: Server) -> None:
    with _client(mortal) as client:
        sid = client.create_session(runtime_class="container")
        run_id = client.start_run(sid, "until [ -e /workspace/go ]; do sleep 0.01; done; echo end; exit 3")
        with contextlib.closing(sqlite3.connect(mortal.data_dir / "engine" / "engine.sqlite")) as other:
            other.execute("BEGIN IMMEDIATE")  # nobody else writes from here on
            client.write_file(sid, "/workspace/go", "")
            assert isinstance(next(client.attach_run(run_id)), Chunk)
            # What it said last is heard a moment before it ends.
            _until(lambda: client.exec(sid, "! pgrep -f '/workspace/[g]o'").exit_code == 0)
            # It has ended and the server knows: commands that began later have ended after it.
            for _ in range(5):
                assert client.exec(sid, "! pgrep -f '/workspace/[g]o'").exit_code == 0
            assert client.poll_run(run_id).status == "running"
            mortal.kill()
    mortal.start()
    with _client(mortal) as client:
        output, end = client.attach_run(run_id)
    assert isinstance(output, Chunk)
    assert output.data == b"end\n"
    assert isinstance(end, Exit)
    assert (end.exit_code, end.status) == (3, "completed")


@pytest.mark.parametrize("runtime", RUNTIMES, ids=str)
def test_a_foreground_command_can_be_taken_up_again(mortal: Server, runtime: Runtime) -> None:
    with _client(mortal) as client:
        sid = client.create_session(runtime_class=runtime)
        # It ends only when there is a server again, however long that takes.
        command = "for i in $(seq 500); do echo $i; sleep 0.005; done; until [ -e go ]; do sleep 0.05; done"
        stream = client.exec_output(sid, command, exec_id="mine")
        seen = b""
        for item in stream:
            assert isinstance(item, Chunk)
            seen += item.data
            if len(seen) > 100:
                break
        mortal.kill()
    mortal.start()
    with _client(mortal) as client:
        client.write_file(sid, "/workspace/go", "")
        for item in client.attach_exec(sid, "mine", stdout_offset=len(seen)):
            if isinstance(item, Chunk):
                assert item.offset == len(seen)
                seen += item.data
            else:
                assert item.exit_code == 0
    assert seen == b"".join(b"%d\n" % n for n in range(1, 501))


@pytest.mark.parametrize("runtime", RUNTIMES, ids=str)
def test_a_terminal_survives_with_what_it_showed(mortal: Server, runtime: Runtime) -> None:
    with _client(mortal) as client:
        sid = client.create_session(runtime_class=runtime)
        terminal = client.create_terminal(sid, ["/bin/bash", "--norc", "-i"])
        client.terminal_write(terminal, b"X=before; echo shown-$X\n")
        _shows(client, terminal, rb"shown-before")
    mortal.kill()
    mortal.start()
    with _client(mortal) as client:
        _shows(client, terminal, rb"shown-before")
        client.terminal_write(terminal, b"echo after-$X\n")
        _shows(client, terminal, rb"after-before")
        client.terminal_destroy(terminal)


def test_a_stop_keeps_sessions_and_a_second_server_is_refused(mortal: Server) -> None:
    with _client(mortal) as client:
        sid = client.create_session(runtime_class="container", tenant_id="kept")
        client.exec(sid, "echo before > /workspace/file")
    second = Server(mortal.data_dir)
    with pytest.raises(RuntimeError, match=r"another server \(pid \d+\)"):
        second.start()
    assert mortal.stop() == 0
    mortal.start()
    with _client(mortal) as client:
        assert client.exec(sid, "cat /workspace/file").stdout == "before\n"
        client.destroy_session(sid)
        client.delete_workspace("kept")


def test_a_damaged_database_stops_the_start_with_the_remedy(mortal: Server) -> None:
    mortal.stop()
    database = mortal.data_dir / "engine" / "engine.sqlite"
    kept = database.read_bytes()
    database.write_bytes(b"garbage" * 1000)
    with pytest.raises(RuntimeError, match=r"damaged[\s\S]*restore it from a backup"):
        mortal.start()
    database.write_bytes(kept)
    mortal.start()


def test_a_missing_runtime_is_said_at_create_and_the_server_goes_on(data_dir: Path, host: Provisioned) -> None:
    tools = data_dir / "tools"
    tools.mkdir()
    _keep_notes(tools, {"gvisor": "it could not be built here"})
    server = Server(data_dir, *NO_POOL, tools_dir=data_dir)
    server.start()
    with _client(server) as client:
        with pytest.raises(SandboxError, match=r"runtime gvisor is not available on this host: .*k8e doctor"):
            client.create_session(runtime_class="gvisor")
        sid = client.create_session(runtime_class="container")
        assert client.exec(sid, "echo ok").stdout == "ok\n"
    server.destroy()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline


def _shows(client: SandboxClient, terminal: str, wanted: bytes) -> None:
    shown = b""
    deadline = time.monotonic() + _PATIENCE_S
    for item in client.terminal_output(terminal):
        if isinstance(item, bytes):
            shown += item
        if re.search(wanted, shown):
            return
        assert time.monotonic() < deadline, shown
    raise AssertionError(shown)
