"""Sessions, runs, processes and terminals as objects, sync and async."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client import (
    AsyncSandboxClient,
    AsyncSession,
    Chunk,
    DeadlineExceeded,
    Exit,
    InvalidRequest,
    NotFound,
    SandboxClient,
    Session,
)
from k8e.client.channels import grpc_channel
from k8e.client.discovery import Target
from k8e.client.processes import AsyncProcess, AsyncProcessInput
from k8e.client.runs import AsyncRun
from k8e.client.session import AsyncChildren, AsyncSessionFiles
from k8e.client.sync.session import Children, Process, ProcessInput, Run, SessionFiles, Terminal
from k8e.client.terminals import AsyncTerminal
from tests.support.door import open_door

PATIENCE_S = 60.0


def test_a_session_is_destroyed_with_its_block_and_destroying_it_again_is_harmless(client: SandboxClient) -> None:
    with client.create("gvisor", ["github.com"], env={"A": "1"}) as session:
        assert session.run("echo $A").stdout == "1\n"
        assert session.info().allowed_hosts == ("github.com",)
    session.destroy()
    with pytest.raises(NotFound):
        session.run("true")


def test_a_session_that_exists_is_taken_up_by_its_id(client: SandboxClient, session: Session) -> None:
    session.files.write("f", "kept")
    assert client.session(session.session_id).exec(["cat", "f"]).stdout == "kept"


def test_a_session_is_given_a_new_lifetime(session: Session) -> None:
    before = session.info().expires_at
    assert session.extend(ttl_s=10 * 86400).expires_at > before


def test_sessions_are_found_by_their_labels(client: SandboxClient) -> None:
    def found(labels: dict[str, str | None]) -> list[str]:
        return [each.session_id for each in client.sessions(labels=labels)]

    with client.create(labels={"batch": "7", "note": "free text"}) as one, client.create(labels={"batch": "8"}) as two:
        assert one.info().labels == {"batch": "7", "note": "free text"}
        assert found({"batch": None}) == [one.session_id, two.session_id]
        assert found({"batch": "7"}) == [one.session_id]
        assert found({"batch": "7", "note": "other"}) == []
        changed = two.update_labels({"batch": "7"}, remove=["none"])
        assert changed.labels == client.get(two.session_id).labels == {"batch": "7"}
        assert found({"batch": "7"}) == [one.session_id, two.session_id]
        assert client.update_labels(one.session_id, remove=["batch"]).labels == {"note": "free text"}
        assert one.children.create().info().labels == {"note": "free text"}
        with pytest.raises(InvalidRequest, match=r"labels\[note\]: contains a control character"):
            client.create_session(labels={"note": "a\nb"})


def test_files_of_a_session(session: Session) -> None:
    files = session.files
    files.mkdir("d/e")
    assert files.write("d/f", b"\x00\xff") == 2
    assert files.read_bytes("d/f") == b"\x00\xff"
    assert b"".join(files.read_chunks("d/f")) == b"\x00\xff"
    files.move("d/f", "d/g")
    assert {entry.path for entry in files.list("d")} == {"/workspace/d/e", "/workspace/d/g"}
    assert files.stat("d/g").size == 2
    files.remove("d", recursive=True)
    with pytest.raises(NotFound):
        files.read("d/g")


def test_children_share_the_workspace(session: Session) -> None:
    child = session.children.create()
    child.files.write("from-child", "x")
    assert session.files.read("from-child") == "x"
    assert [each.session_id for each in session.children.list()] == [child.session_id]


def test_a_background_run_is_waited_for_polled_and_killed(session: Session) -> None:
    done = session.background("print(6 * 7)", "python").wait(60)
    assert (done.status, done.stdout, done.exit_code) == ("completed", "42\n", 0)
    run = session.start("echo begun; exec sleep 60")
    items = run.output()
    assert next(items) == Chunk("stdout", 0, b"begun\n")
    with pytest.raises(DeadlineExceeded, match=r"still runs.*kill it"):
        run.wait(0.01)
    assert run.poll().status == "running"
    run.kill()
    end = next(items)
    assert isinstance(end, Exit)
    assert run.wait(60).signal == 9
    assert {each.run_id for each in session.runs()} >= {run.run_id}


def test_a_background_run_is_given_input_until_that_ends(session: Session) -> None:
    program = "import sys\nprint('begun', flush=True)\nprint(sys.stdin.read().upper())"
    for run in (session.background(program, "python", stdin=True), session.start(["cat"], stdin=True)):
        assert session.send_input(run.run_id, "one\n")
        assert run.poll().status == "running"
        assert session.send_input(run.run_id, b"two\n", eof=True)
        done = run.wait(60)
        assert (done.status, done.stdout.lower().removeprefix("begun\n").strip()) == ("completed", "one\ntwo")
    assert session.start("cat; echo end").wait(60).stdout == "end\n", "the control: without it there is none"


def test_a_process_is_written_to_and_read_from(session: Session) -> None:
    with session.process("while read line; do echo got $line; done; echo end >&2; exit 3") as process:
        process.stdin.write("one\n")
        assert next(iter(process)).data == b"got one\n"
        process.stdin.write(b"two\n")
        result = process.wait()
    assert (result.stdout, result.stderr, result.exit_code) == ("got two\n", "end\n", 3)
    assert process.exit is not None
    with pytest.raises(ValueError, match="closed"):
        process.stdin.write("more")


def test_a_process_is_killed_by_a_signal(session: Session) -> None:
    with session.process("echo up; exec sleep 60") as process:
        assert next(iter(process)).data == b"up\n"
        process.kill(15)
        assert list(process) == []
        assert process.exit is not None
        assert process.exit.signal == 15


def test_a_terminal_is_typed_into(session: Session) -> None:
    with session.terminal(["/bin/cat"]) as terminal:
        terminal.resize(40, 100)
        terminal.write("hello\n")
        shown = b""
        for item in terminal.output():
            assert isinstance(item, bytes)
            shown += item
            if b"hello" in shown:
                break
    terminal.destroy()


def test_a_terminal_says_by_which_signal_its_program_ended(session: Session) -> None:
    with session.terminal(["/bin/sh", "-c", "kill -TERM $$"]) as terminal:
        *_, end = terminal.output()
    assert isinstance(end, Exit)
    assert (end.exit_code, end.signal) == (143, 15)
    with session.terminal(["/bin/sh", "-c", "exit 143"]) as terminal:
        *_, end = terminal.output()
    assert isinstance(end, Exit)
    assert (end.exit_code, end.signal) == (143, 0)  # the control: nobody sent a signal


@pytest.mark.anyio
async def test_a_terminal_gets_the_time_to_end_that_was_given_and_none_unless_it_was(data_dir: Path) -> None:
    async with open_door(data_dir) as door, AsyncSandboxClient(target=door.target) as client:
        session = await client.create()

        async def leaving(word: str) -> AsyncTerminal:
            """A shell that needs a moment after the hang-up to leave a file behind."""
            script = f"trap 'sleep 0.2; touch {data_dir}/{word}; exit' HUP; echo ready; while :; do sleep 0.01; done"
            terminal = await session.terminal(["/bin/sh", "-c", script])
            async for piece in terminal.output():
                if isinstance(piece, bytes) and b"ready" in piece:
                    break
            return terminal

        await (await leaving("given")).destroy(grace_s=PATIENCE_S)
        async with grpc_channel(door.target) as channel:
            older = pb.TerminalDestroyRequest(terminal_id=(await leaving("older")).terminal_id)
            await SandboxStub(channel).TerminalDestroy(older)
        await (await leaving("none")).destroy()
        assert {path.name for path in data_dir.iterdir()} & {"given", "older", "none"} == {"given", "older"}


@pytest.mark.anyio
async def test_the_async_objects_do_the_same(target: Target) -> None:
    async with AsyncSandboxClient(target=target) as client, await client.create() as session:
        assert isinstance(session, AsyncSession)
        await session.files.write("f", "text")
        assert await session.files.read("f") == "text"
        run = await session.background("echo hi")
        assert (await run.wait(60)).stdout == "hi\n"
        async with await session.process("cat") as process:
            await process.stdin.write("x")
            await process.stdin.close()
            assert [chunk.data async for chunk in process] == [b"x"]
        assert [each async for each in session.exec_stream("echo out")] == ["out\n"]


@pytest.mark.parametrize(
    ("plain", "asynchronous"),
    [
        (Session, AsyncSession),
        (SessionFiles, AsyncSessionFiles),
        (Children, AsyncChildren),
        (Run, AsyncRun),
        (Process, AsyncProcess),
        (ProcessInput, AsyncProcessInput),
        (Terminal, AsyncTerminal),
    ],
)
def test_every_object_has_the_same_names_on_both_sides(plain: type, asynchronous: type) -> None:
    def names(kind: type) -> set[str]:
        return {name for name, value in vars(kind).items() if name[0] != "_" and not isinstance(value, property)}

    assert names(plain) == names(asynchronous)


def test_help_shows_what_a_caller_gives(session: Session) -> None:
    assert list(inspect.signature(session.exec).parameters)[:2] == ["command", "timeout"]
    assert list(inspect.signature(session.files.read).parameters) == ["path"]
    assert list(inspect.signature(session.calls.exec).parameters)[:2] == ["command", "timeout"]
    assert list(inspect.signature(session.background).parameters)[:2] == ["code", "language"]
    assert list(inspect.signature(SandboxClient.session).parameters) == ["self", "session_id"]
    assert session.exec.__doc__ is not None
    assert "Run a command to its end" in session.exec.__doc__
