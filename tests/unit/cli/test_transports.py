"""The same commands through the unix socket and through gRPC with TLS: one behaviour, two costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.client.discovery import discover
from k8e.client.errors import InvalidRequest, NotFound, SandboxError, Unreachable
from k8e.client.light.calls import Answer, Calls, Request, deadline, encoded, exact, only
from k8e.client.light.places import unix_path
from k8e.client.light.remote import RemoteCalls
from k8e.client.light.unix import UnixCalls

HEAVY = {"asyncio", "grpc", "google", "dataclasses", "subprocess", "http.client", "yaml"}


@pytest.fixture(params=["unix", "grpc"])
def calls(server: Path, request: pytest.FixtureRequest) -> Iterator[Calls]:
    if request.param == "unix":
        made: Calls = UnixCalls(unix_path(server))
    else:
        made = RemoteCalls(discover(environ={"K8E_DATA_DIR": str(server), "HOME": str(server)}))
    yield made
    made.close()


@pytest.fixture
def session_id(calls: Calls) -> str:
    return calls.unary("CreateSession", {}).text("session_id")


@pytest.fixture(params=["unix", "grpc"])
def chosen(request: pytest.FixtureRequest, server: Path, environ: dict[str, str]) -> dict[str, str]:
    """The environment of a user who has, or has not, named an endpoint."""
    if request.param == "unix":
        return environ
    doors = json.loads((server / "server" / "server.json").read_text())["doors"]
    return environ | {"K8E_SANDBOX_ENDPOINT": doors["grpc"]}


def test_one_question_has_one_answer(calls: Calls, session_id: str) -> None:
    answer = calls.unary("Exec", {"session_id": session_id, "argv": [encoded("printf"), encoded(r"a\377")]})
    assert (answer.number("exit_code"), answer.text("status")) == (0, "completed")
    assert exact(answer, "stdout") == "a\udcff"
    assert answer.number("duration_ms") >= 0


def test_a_refusal_is_the_same_class_with_the_servers_words(calls: Calls) -> None:
    with pytest.raises(NotFound, match="session sess-none not found"):
        calls.unary("GetSession", {"session_id": "sess-none"})
    with pytest.raises(InvalidRequest, match="session_id"):
        calls.unary("GetSession", {"session_id": "a b"})
    with pytest.raises(SandboxError):
        calls.unary("GetSession", {"no_such_field": 1})


def test_a_stream_comes_piece_by_piece_and_ends(calls: Calls, session_id: str) -> None:
    start = {"session_id": session_id, "code": encoded("echo one; echo two >&2; exit 3"), "language": "bash"}
    items = list(calls.stream("ExecAttach", [{"start": start}]))
    assert items[0].has("started")
    chunks = {each.one("chunk").text("channel"): each.one("chunk").data("data") for each in items if each.has("chunk")}
    assert chunks == {"OUTPUT_CHANNEL_STDOUT": b"one\n", "OUTPUT_CHANNEL_STDERR": b"two\n"}
    assert items[-1].one("exit").number("exit_code") == 3


def test_a_stream_that_is_refused_says_why(calls: Calls) -> None:
    with pytest.raises(NotFound, match="sess-none"):
        list(calls.stream("ReadStream", [{"session_id": "sess-none", "path": "f"}]))


def test_many_pieces_make_one_file(calls: Calls, session_id: str) -> None:
    content = os.urandom(3_000_001)

    def requests() -> Iterator[dict[str, object]]:
        yield {"open": {"session_id": session_id, "path": "f"}}
        for start in range(0, len(content), 100_000):
            yield {"data": encoded(content[start : start + 100_000])}

    assert only(calls.stream("WriteStream", requests())).number("size") == len(content)
    read = calls.stream("ReadStream", [{"session_id": session_id, "path": "f"}])
    assert b"".join(each.data("data") for each in read) == content


def test_a_server_that_refuses_is_heard_while_pieces_are_sent(calls: Calls) -> None:
    def requests() -> Iterator[dict[str, object]]:
        yield {"open": {"session_id": "sess-none", "path": "f"}}
        for _ in range(200):
            yield {"data": encoded(bytes(100_000))}

    with pytest.raises(NotFound, match="sess-none"):
        only(calls.stream("WriteStream", requests()))


def test_what_cannot_be_read_to_be_sent_is_the_callers_mistake(calls: Calls, session_id: str) -> None:
    def requests(trouble: Exception | None) -> Iterator[Request]:
        yield {"open": {"session_id": session_id, "path_bytes": encoded("f")}}
        if trouble:
            raise trouble
        yield {"data": encoded("whole")}

    for trouble in (PermissionError(13, "Permission denied", "/here"), InvalidRequest("Permission denied")):
        with pytest.raises(InvalidRequest, match="Permission denied"):
            only(calls.stream("WriteStream", requests(trouble)))
    assert only(calls.stream("WriteStream", requests(None))).number("size") == 5


def test_leaving_a_stream_ends_the_command(calls: Calls, session_id: str, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = f"echo begun; trap '' HUP; exec 3>{fifo}; exec sleep 60"
    start = {"session_id": session_id, "code": encoded(code), "language": "bash"}
    stream = calls.stream("ExecAttach", [{"start": start}], timeout_s=deadline(100))
    while not next(stream).has("chunk"):
        pass
    held = os.open(fifo, os.O_RDONLY)
    assert isinstance(stream, Iterator)
    del stream
    assert os.read(held, 1) == b""  # its end of the pipe is closed only by its death
    os.close(held)


def test_nobody_there_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="k8e server"):
        UnixCalls(str(tmp_path / "none.sock")).unary("ServerStatus", {})


def test_something_else_there_is_unreachable_too(tmp_path: Path) -> None:
    import socket
    import threading

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def greet() -> None:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"220 mail.example ESMTP\r\n")
            connection.close()

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(SandboxError):
            UnixCalls(str(tmp_path / "s")).unary("ServerStatus", {})
        thread.join()


def test_what_an_answer_leaves_out_has_its_default() -> None:
    empty = Answer({})
    assert (empty.text("x"), empty.number("x"), empty.decimal("x"), empty.flag("x")) == ("", 0, 0.0, False)
    assert (empty.data("x"), empty.texts("x"), empty.each("x"), empty.pairs("x")) == (b"", [], [], {})
    assert empty.one("x").text("y") == ""
    full = Answer({"big": "9007199254740993", "data": "aGk=", "list": [{"a": "b"}]})
    assert (full.number("big"), full.data("data"), full.each("list")[0].text("a")) == (9007199254740993, b"hi", "b")


def test_a_command_gives_the_same_through_either(chosen: dict[str, str]) -> None:
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "run"]
    done = subprocess.run([*argv, "echo $((6 * 7)); exit 5"], env=chosen, capture_output=True, check=False)
    told = json.loads(done.stdout)
    assert (done.returncode, told["stdout"], told["exit_code"]) == (5, "42\n", 5)
    raw = subprocess.run([*argv, "--raw", "echo out; echo err >&2"], env=chosen, capture_output=True, check=True)
    assert (raw.stdout, raw.stderr) == (b"out\n", b"err\n")


@pytest.mark.parametrize("raw", [[], ["--raw"]], ids=["json", "raw"])
def test_an_interrupt_reaches_the_command_through_either(
    chosen: dict[str, str], tmp_path: Path, raw: list[str]
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "run", *raw, f"exec 3>{fifo}; exec sleep 60"]
    with subprocess.Popen(argv, env=chosen, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        held = os.open(fifo, os.O_RDONLY)  # blocks until the command is up
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert os.read(held, 1) == b""
    os.close(held)


@pytest.mark.parametrize(("name", "expected"), [("unix", set()), ("grpc", {"grpc", "google"})])
def test_the_local_way_loads_nothing_heavy(
    server: Path, environ: dict[str, str], name: str, expected: set[str], tmp_path: Path
) -> None:
    doors = json.loads((server / "server" / "server.json").read_text())["doors"]
    more = {} if name == "unix" else {"K8E_SANDBOX_ENDPOINT": doors["grpc"]}
    code = (
        "import sys\nfrom k8e.cli.main import main\n"
        "code = main(['sandbox', 'run', 'true'], prog='k8e')\n"
        f"print(*sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)\nraise SystemExit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environ | more, capture_output=True, text=True, check=True)
    found = set(done.stderr.split())
    assert found & {"grpc", "google"} == expected  # the control: the other way needs them
    if name == "unix":
        assert found == set()


def test_a_path_that_is_too_long_for_the_kernel_is_reached(server: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.symlink_to(Path(unix_path(server)).parent)
    answer = UnixCalls(str(deep / Path(unix_path(server)).name)).unary("ServerStatus", {})
    assert answer.number("pid") > 0
