"""The SDK against the real server: what its objects promise when servers restart, processes fork, sandboxes lie."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k8e.client import Chunk, Exit, NotFound, SandboxClient, Session, Unreachable, retries
from k8e.client.discovery import Target
from k8e.setup.provision import Provisioned
from tests.support.servers import NO_POOL, Server


@pytest.fixture
def session(client: SandboxClient) -> Iterator[Session]:
    with client.create() as session:
        yield session


def test_a_server_that_listens_everywhere_is_found(data_dir: Path, host: Provisioned) -> None:
    server = Server(data_dir, *NO_POOL, listen="0.0.0.0:0")
    server.start()
    try:
        with SandboxClient(target=server.by_tls()) as client:
            assert client.whoami().via == "loopback"
    finally:
        server.destroy()


WAYS = pytest.mark.parametrize("way", [Server.target, Server.by_tls], ids=["socket", "tls"])


@WAYS
@pytest.mark.timeout(300)
def test_output_goes_on_and_calls_are_answered_when_the_server_comes_back(
    mortal: Server, way: Callable[[Server], Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long this machine takes to start a server.
    monkeypatch.setattr(retries, "BUDGET_S", 200.0)
    with SandboxClient(target=way(mortal)) as client:
        session = client.create("container")
        command = "echo first; until [ -e go ]; do sleep 0.05; done; echo last; exit 5"
        session.files.write("kept", "kept\n")
        items = session.exec_output(command)
        run = session.start(command)
        assert next(items) == Chunk("stdout", 0, b"first\n")
        mortal.kill()
        back = threading.Thread(target=mortal.start)
        back.start()
        # Asked while nobody listens; answered by the next server.
        assert session.files.read("kept") == "kept\n"
        assert session.info().session_id == session.session_id
        back.join()
        session.files.write("go", "")
        rest = list(items)
        assert rest[0] == Chunk("stdout", 6, b"last\n")
        assert isinstance(rest[1], Exit)
        assert rest[1].exit_code == 5
        assert (run.wait(60).stdout, run.poll().exit_code) == ("first\nlast\n", 5)


@WAYS
@pytest.mark.timeout(300)
def test_a_command_whose_answer_was_lost_is_not_run_twice(
    mortal: Server, way: Callable[[Server], Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "BUDGET_S", 1.0)
    with SandboxClient(target=way(mortal)) as client:
        session = client.create("container")
        failed: list[BaseException] = []

        def run() -> None:
            try:
                session.exec("echo once >> count; exec sleep 100", timeout=90)
            except Unreachable as error:
                failed.append(error)

        running = threading.Thread(target=run)
        running.start()
        while "count" not in {Path(each.path).name for each in session.files.list()}:
            time.sleep(0.01)
        mortal.kill()
        running.join()
        monkeypatch.undo()
        mortal.start()
        assert "no answer from" in str(failed[0])
        assert session.files.read("count") == "once\n"


def test_a_tree_goes_up_and_comes_back_and_planted_links_lead_nowhere(session: Session, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub").chmod(0o750)
    (tree / "sub" / "tool").write_bytes(bytes(range(256)) * 5000)
    (tree / "sub" / "tool").chmod(0o755)
    (tree / "link").symlink_to("sub/tool")
    assert session.files.upload(tree, "copy").files == 1
    shown = session.exec("stat -c '%a %n' copy/sub copy/sub/tool; readlink copy/link; sha256sum < copy/sub/tool").stdout
    assert shown.startswith("750 copy/sub\n755 copy/sub/tool\nsub/tool\n")
    session.exec("ln -s /etc/passwd copy/passwd; ln -s ../.. copy/up; ln -s / copy/sub/root; mkfifo copy/pipe")
    done = session.files.download("copy", tmp_path / "back")
    assert {Path(path).name for path in done.skipped} == {"passwd", "up", "root", "pipe"}
    assert (tmp_path / "back" / "link").read_bytes() == bytes(range(256)) * 5000
    assert ((tmp_path / "back" / "sub").stat().st_mode & 0o777) == 0o750
    assert sorted(each.name for each in (tmp_path / "back").rglob("*")) == ["link", "sub", "tool"]


def test_a_directory_that_is_a_link_inside_is_downloaded_by_its_content(session: Session, tmp_path: Path) -> None:
    session.exec("mkdir real; echo x > real/file; ln -s real alias")
    assert session.files.download("alias", tmp_path / "back").files == 1
    assert (tmp_path / "back" / "file").read_text() == "x\n"


def test_processes_and_terminals_are_the_real_thing(session: Session) -> None:
    with session.process(["cat"]) as process:
        process.stdin.write("typed\n")
        assert next(iter(process)).data == b"typed\n"
        assert process.wait().exit_code == 0
    with session.terminal(["/bin/sh"]) as terminal:
        terminal.write("stty size\n")
        shown = b""
        for item in terminal.output():
            assert isinstance(item, bytes)
            shown += item
            if b"24 80" in shown:
                break


def test_children_work_in_the_same_workspace(session: Session) -> None:
    child = session.children.create()
    child.exec("echo from child > shared")
    assert session.files.read("shared") == "from child\n"
    child.destroy()
    assert session.children.list() == []


def test_a_forked_child_calls_the_real_server(client: SandboxClient, session: Session) -> None:
    session.files.write("parent", "p")
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        said = b"failed"
        try:
            said = client.session(session.session_id).exec("cat parent").stdout_bytes
        finally:
            os.write(writing, said)
            client.close()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        assert file.read() == b"p"
    os.waitpid(pid, 0)
    assert session.exec("cat parent").stdout == "p"


def test_an_expired_session_of_the_clients_own_is_made_again_and_an_explicit_one_is_not(client: SandboxClient) -> None:
    first = client.run("echo kept > file")
    client.destroy_session(first.session_id)
    again = client.run("cat file || echo empty")
    assert (again.recreated, again.stdout) == (True, "empty\n")
    with pytest.raises(NotFound, match=first.session_id):
        client.session(first.session_id).run("true")
