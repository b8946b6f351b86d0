"""The SDK against a real door in another process: the calls users make, sync and async."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import assert_type

import pytest

import sandbox_client
from k8e import client as sdk
from k8e._proto import sandbox_pb2 as pb
from k8e.client import (
    AsyncSandboxClient,
    Chunk,
    ExecResult,
    Exit,
    InvalidRequest,
    Limits,
    NotFound,
    SandboxClient,
    Unreachable,
    Unsupported,
    discovery,
    sandbox_session,
)
from k8e.client.discovery import Target
from k8e.client.sync import Blocking, Iterating, Making
from tests.support import inside
from tests.support.session_python import PRINTS_ARGUMENTS

PATIENCE_S = 60.0


@pytest.fixture
def sid(client: SandboxClient) -> Iterator[str]:
    session_id = client.create_session()
    yield session_id
    client.destroy_session(session_id)


def test_run_answers_with_output_and_exit_code(client: SandboxClient) -> None:
    result = client.run("import sys; print('hi'); sys.exit(3)", "python")
    assert (result.stdout, result.stderr, result.exit_code, result.language) == ("hi\n", "", 3, "python")


def test_the_clients_own_session_is_reused_and_destroyed_at_close(target: Target) -> None:
    with SandboxClient(target=target) as watching:
        with SandboxClient(target=target) as client:
            client.run("echo kept > file")
            result = client.run("cat file")
            assert result.stdout == "kept\n"
            assert watching.get(result.session_id).phase == "Active"
        with pytest.raises(NotFound):
            watching.get(result.session_id)


def test_with_a_tenant_the_session_stays_and_is_found_again(target: Target) -> None:
    with SandboxClient(tenant_id="team", target=target) as client:
        first = client.run("echo kept > file").session_id
    with SandboxClient(tenant_id="team", target=target) as client:
        again = client.run("cat file")
        assert (again.session_id, again.stdout) == (first, "kept\n")
        client.destroy_session(first)


def test_the_tenant_is_the_arguments_or_else_the_environments(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K8E_DATA_DIR", target.found)
    monkeypatch.setenv("K8E_SANDBOX_TENANT", "from-env")
    for given, expected in (({}, "from-env"), ({"tenant_id": "given"}, "given"), ({"target": target}, "")):
        with SandboxClient(**given) as client:
            session_id = client.run("true").session_id
            assert client.get(session_id).tenant_id == expected
            client.destroy_session(session_id)


def test_an_expired_session_of_the_clients_own_is_made_again_and_said_so(client: SandboxClient) -> None:
    first = client.run("true")
    client.destroy_session(first.session_id)
    second = client.run("echo on")
    assert (second.stdout, second.session_recreated, first.session_recreated) == ("on\n", True, False)
    assert second.session_id != first.session_id


def test_an_expired_session_of_the_clients_own_is_made_again_for_output_and_for_the_background(
    client: SandboxClient,
) -> None:
    client.destroy_session(client.run("true").session_id)
    *chunks, end = client.run_output("echo on")
    assert isinstance(end, Exit)
    assert (chunks, end.session_recreated) == ([Chunk("stdout", 0, b"on\n")], True)
    *_, end = client.run_output("true")
    assert isinstance(end, Exit)
    assert not end.session_recreated  # the control: it is there
    own = client.run("true").session_id
    client.destroy_session(own)
    run = client.poll_run(client.run_background("true"))
    assert run.session_id != own


@pytest.mark.parametrize("way", ["run_output", "run_background"])
def test_no_way_of_running_replaces_an_explicit_session(client: SandboxClient, way: str) -> None:
    with pytest.raises(NotFound, match="session sess-gone not found"):
        list(getattr(client, way)("true", session_id="sess-gone"))


def test_an_explicit_session_is_never_replaced(client: SandboxClient) -> None:
    with pytest.raises(NotFound, match="session sess-gone not found"):
        client.run("true", session_id="sess-gone")


def test_code_arrives_byte_for_byte(client: SandboxClient) -> None:
    code = b"printf '%s' '$HOME `id` \"q\" \\ \xc3\xa4'; printf '\\377'"
    result = client.run(code)
    assert result.stdout_bytes == b'$HOME `id` "q" \\ \xc3\xa4\xff'


def test_exec_takes_text_for_a_shell_or_arguments_without_one(client: SandboxClient, sid: str) -> None:
    assert client.exec(sid, "echo $((1+1))").stdout == "2\n"
    assert client.exec(sid, ["printf", "%s", "$((1+1))"]).stdout == "$((1+1))"
    assert client.exec(sid, "echo $X; pwd", env={"X": "y"}).stdout.startswith("y\n")


def test_standard_input_of_any_size_and_content_arrives(client: SandboxClient, sid: str) -> None:
    data = bytes(range(256)) * 4096
    result = client.exec(sid, "cat; exit 4", stdin=data)
    assert (result.stdout_bytes == data, result.exit_code) == (True, 4)


def test_exec_stream_yields_text_as_it_comes(client: SandboxClient, sid: str) -> None:
    chunks = client.exec_stream(sid, "echo one; until [ -e heard ]; do sleep 0.01; done; echo two >&2")
    assert next(chunks) == "one\n"
    client.write_file(sid, "heard", "")
    assert "".join(chunks) == "two\n"


def test_exec_output_keeps_the_streams_apart_and_ends_with_the_exit(client: SandboxClient, sid: str) -> None:
    items = list(client.exec_output(sid, "printf '\\377'; echo err >&2; exit 9"))
    assert isinstance(items[-1], Exit)
    assert items[-1].exit_code == 9
    assert {(item.stream, item.data) for item in items if isinstance(item, Chunk)} == {
        ("stdout", b"\xff"),
        ("stderr", b"err\n"),
    }


def test_leaving_a_stream_early_stops_the_command(client: SandboxClient, sid: str, tmp_path: Path) -> None:
    stream = client.exec_stream(sid, "echo $$; exec sleep 60")
    pid = int(next(stream))
    assert inside.exists(pid)
    stream.close()  # type: ignore[attr-defined]  # it is a generator; a user's would be closed by being forgotten
    inside.wait_gone(pid)


def test_a_stream_left_half_read_ends_with_its_client(target: Target) -> None:
    with SandboxClient(target=target) as client:
        stream = client.exec_stream(client.run("true").session_id, "echo up; exec sleep 60")
        assert next(stream) == "up\n"
    stream.close()  # type: ignore[attr-defined]  # it is a generator; a user's would be closed by being forgotten


def test_files_of_any_name_content_and_size_come_back(client: SandboxClient, sid: str) -> None:
    small, large = b"\x00\xff", bytes(range(256)) * 10_000
    for name, content in (("a b%#\n\udcff", small), ("deep/er/large", large)):
        assert client.write_file(sid, f"/workspace/{name}", content) == len(content)
        assert client.read_bytes(sid, f"/workspace/{name}") == content
    assert client.read_bytes(sid, "deep/er/large", offset=255, length=2) == b"\xff\x00"
    assert {entry.path for entry in client.list_files(sid)} >= {"/workspace/a b%#\n\udcff", "/workspace/deep/er/large"}


def test_text_that_is_not_utf8_survives_reading_and_writing_back(client: SandboxClient, sid: str) -> None:
    client.write_file(sid, "f", b"\xc3\xa4\xff")
    text = client.read_file(sid, "f")
    client.write_file(sid, "g", text)
    assert client.read_bytes(sid, "g") == b"\xc3\xa4\xff"
    client.write_file(sid, "g", "+", "a")
    assert client.read_bytes(sid, "g") == b"\xc3\xa4\xff+"


def test_the_other_file_calls(client: SandboxClient, sid: str) -> None:
    client.make_directory(sid, "d/e")
    client.write_file(sid, "d/f", "x", perm=0o755)
    assert (client.stat(sid, "d/f").type, client.stat(sid, "d/f").mode) == ("file", 0o755)
    client.move(sid, "d/f", "d/g")
    assert {(entry.path, entry.type) for entry in client.list_directory(sid, "d")} == {
        ("/workspace/d/e", "directory"),
        ("/workspace/d/g", "file"),
    }
    client.remove(sid, "d", recursive=True)
    with pytest.raises(NotFound):
        client.stat(sid, "d")


def test_a_background_run_is_polled_followed_and_killed(client: SandboxClient, sid: str) -> None:
    run_id = client.start_run(sid, "echo begun; exec sleep 60")
    items = client.attach_run(run_id)
    assert next(items) == Chunk("stdout", 0, b"begun\n")
    assert (client.poll_run(run_id).status, client.poll_run(run_id).stdout) == ("running", "begun\n")
    client.kill_run(run_id)
    end = next(items)
    assert isinstance(end, Exit)
    assert (end.reason, end.signal) == ("killed", 9)
    assert [run.run_id for run in client.runs(sid)] == [run_id]


def test_a_subagent_shares_the_workspace(client: SandboxClient, sid: str) -> None:
    child = client.subagent(sid)
    client.write_file(child, "from-child", "x")
    assert client.read_file(sid, "from-child") == "x"
    assert client.get(sid).child_session_ids == (child,)


def test_create_session_is_one_call_with_every_option(client: SandboxClient) -> None:
    limits = Limits(cpus=2, ttl_s=60)
    sid = client.create_session("gvisor", ["github.com"], env={"A": "1"}, limits=limits)
    session = client.get(sid)
    assert (session.runtime_class, session.allowed_hosts, session.env_keys) == ("gvisor", ("github.com",), ("A",))
    assert (session.limits.cpus, session.limits.ttl_s) == (2, 60)
    assert client.exec(sid, "echo $A").stdout == "1\n"


def test_the_network_of_a_session_can_be_changed(client: SandboxClient) -> None:
    sid = client.create_session(allowed_hosts=["a.example"], limits=Limits(connections=9))
    assert (client.get(sid).network, client.get(sid).limits.connections) == ("list", 9)
    assert client.update_allowed_hosts(sid, add=["b.example:22"], remove=["a.example"]) == ["b.example:22"]
    assert client.update_allowed_hosts(sid, ["c.example"]) == ["c.example"]
    assert client.get(sid).allowed_hosts == ("c.example",)
    with pytest.raises(InvalidRequest, match="anybody can register"):
        client.update_allowed_hosts(sid, ["*.com"])


def test_packages_are_installed_by_name(client: SandboxClient, sid: str) -> None:
    client.exec(sid, PRINTS_ARGUMENTS)
    done = client.pip_install(sid, ["six==1.16.0"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.endswith("--\nsix==1.16.0\n")
    with pytest.raises(InvalidRequest, match="packages"):
        client.pip_install(sid, ["--help"])


def test_sandbox_session_gives_a_client_and_a_fresh_session(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K8E_DATA_DIR", target.found)
    with sandbox_session(runtime_class="gvisor", allowed_hosts=["github.com"]) as (client, sid):
        client.write_file(sid, "/workspace/main.py", "print(40 + 2)")
        assert client.exec(sid, "python3 main.py").stdout == "42\n"


def test_a_session_that_ended_inside_the_block_is_no_error_at_its_end(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K8E_DATA_DIR", target.found)
    with sandbox_session() as (client, sid):
        client.destroy_session(sid)
        with pytest.raises(NotFound):
            client.get(sid)


def test_bad_arguments_and_missing_parts_have_their_own_errors(client: SandboxClient) -> None:
    with pytest.raises(InvalidRequest, match="runtime_class"):
        client.create_session("magic")
    with pytest.raises(InvalidRequest, match="language"):
        client.run("x", "cobol")
    with pytest.raises(Unsupported, match="PauseSession"):
        client.loop.wait(paused(client.calls))


async def paused(calls: AsyncSandboxClient) -> None:
    await calls._call(calls._stub.PauseSession, pb.PauseSessionRequest(session_id="s"), timeout_s=PATIENCE_S)


def test_an_unreachable_server_says_what_was_tried_and_what_to_do() -> None:
    with SandboxClient("127.0.0.1:1") as client, pytest.raises(Unreachable, match=r"127\.0\.0\.1:1.*k8e server"):
        client.sessions()


def test_where_nothing_was_named_the_error_lists_where_a_server_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K8E_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("K8E_SANDBOX_CERT_DIR", str(tmp_path))
    monkeypatch.setattr(discovery, "DEFAULT_ENDPOINT", "127.0.0.1:1")
    with SandboxClient() as client, pytest.raises(Unreachable) as caught:
        client.sessions()
    for part in ("K8E_SANDBOX_ENDPOINT", "profiles.yaml", "config.json", "none/server/server.json", "`k8e server`"):
        assert part in str(caught.value)


def test_the_sync_client_works_from_many_threads(client: SandboxClient, sid: str) -> None:
    seen: list[str] = []
    threads = [threading.Thread(target=lambda n=n: seen.append(client.exec(sid, f"echo {n}").stdout)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [f"{n}\n" for n in range(8)]


@pytest.mark.anyio
async def test_the_sync_client_works_inside_a_running_loop(target: Target) -> None:
    with SandboxClient(target=target) as client:
        assert client.run("echo loop").stdout == "loop\n"


@pytest.mark.anyio
async def test_the_async_client_does_the_same(target: Target) -> None:
    async with AsyncSandboxClient(target=target) as client:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.run(f"echo {n}"), name=str(n)) for n in range(5)]
        results = [task.result() for task in tasks]
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(5)]
        assert len({result.session_id for result in results}) == 1

        async def pieces() -> AsyncIterator[bytes]:
            yield b"one "
            yield b"two"

        own = results[0].session_id
        assert await client.write_file(own, "f", pieces()) == 7
        assert (await client.exec(own, "cat", stdin=pieces())).stdout == "one two"


def test_every_async_call_has_its_sync_face() -> None:
    calls = {name for name, value in inspect.getmembers(AsyncSandboxClient) if not name.startswith("_")}
    faces = {name for name, value in vars(SandboxClient).items() if isinstance(value, Blocking | Iterating | Making)}
    assert calls - {"aclose", "close"} == faces | {"session"}


def test_the_sync_face_keeps_the_types_of_the_async_one(client: SandboxClient, sid: str) -> None:
    assert_type(client.exec(sid, "true", 5), ExecResult)
    assert_type(client.exec_stream(sid, "true"), Iterator[str])
    assert_type(client.create_session(tenant_id="typed"), str)
    with pytest.raises(TypeError):
        client.exec(sid, "true", no_such=1)  # type: ignore[call-arg]  # the checker refuses it, too


def test_the_old_import_name_has_every_public_name() -> None:
    assert sandbox_client.__all__ == sdk.__all__
    assert all(getattr(sandbox_client, name) is getattr(sdk, name) for name in sdk.__all__)


def test_errors_and_values_load_without_the_transport() -> None:
    code = "import sys, k8e.client.errors, k8e.client.values, k8e.client.discovery; print('grpc' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


def test_nothing_is_imported_that_other_platforms_lack() -> None:
    code = (
        "import sys\n"
        "for name in ('fcntl', 'pwd', 'grp', 'termios', 'resource'): sys.modules[name] = None\n"
        "from sandbox_client import *\nprint(SandboxClient.__name__)"
    )
    said = subprocess.run(
        [sys.executable, "-S", "-c", f"import site; site.main()\n{code}"], capture_output=True, text=True, check=False
    )
    assert said.stdout == "SandboxClient\n", said.stderr


def test_whatever_was_started_is_listed_followed_fed_and_signalled_by_its_id(client: SandboxClient, sid: str) -> None:
    run_id = client.start_run(sid, "echo begun; exec sleep 60")
    process = client.start_process(sid, "echo ready; exec cat")
    found = {each.exec_id: each for each in client.execs(sid)}
    assert (found[run_id].running, found[run_id].is_kept, found[run_id].takes_input) == (True, True, False)
    assert found[process.exec_id].takes_input
    assert found[process.exec_id].command == "echo ready; exec cat"
    follower = client.follow_exec(sid, process.exec_id, stdout_offset=2)
    assert next(follower) == Chunk("stdout", 2, b"ady\n")
    assert client.send_input(sid, process.exec_id, "typed")
    assert next(follower) == Chunk("stdout", 6, b"typed")
    assert client.send_input(sid, process.exec_id, eof=True)
    assert process.wait().exit_code == 0
    end = next(follower)
    assert isinstance(end, Exit)
    assert (end.exit_code, end.truncated) == (0, False)
    with pytest.raises(InvalidRequest, match="must be 1-64"):
        client.signal_exec(sid, run_id, 0)
    client.signal_exec(sid, run_id)
    (*_, end) = client.attach_run(run_id)
    assert isinstance(end, Exit)
    assert end.signal == 15
    with pytest.raises(NotFound):
        client.signal_exec(sid, "no-such-command")
