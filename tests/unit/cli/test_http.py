"""The light client against a server that says anything: an answer, or one of our errors, and never anything else."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import run

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8e.client.errors import DeadlineExceeded, Exhausted, NotFound, SandboxError, ServerFailed, Unreachable
from k8e.client.light.calls import Answer, only
from k8e.client.light.http import Exchange, LostConnectionError, envelope
from k8e.client.light.unix import UnixCalls

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
FOREIGN = ("termios", "tty", "fcntl", "pwd", "grp", "resource", "pty")


@contextlib.contextmanager
def saying(directory: Path, answer: bytes, *, linger: bool = False) -> Iterator[UnixCalls]:
    """A server that reads a request, says this, and goes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "s"))
        listener.listen()
        done = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(answer)
                if linger:
                    done.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        yield UnixCalls(str(directory / "s"))
        done.set()
        thread.join()


def asked(calls: UnixCalls, way: str) -> Answer:
    return calls.unary("X", {}) if way == "unary" else only(calls.stream("X", [{}]))


def test_an_answer_may_have_a_length_or_come_in_chunks(tmp_path: Path) -> None:
    with saying(tmp_path, OK + b'content-length: 9\r\n\r\n{"a":"b"}') as calls:
        assert calls.unary("X", {}).text("a") == "b"
    (tmp_path / "s").unlink()
    with saying(tmp_path, OK + b'transfer-encoding: chunked\r\n\r\n4;x=y\r\n{"a"\r\n5\r\n:"b"}\r\n0\r\n\r\n') as calls:
        assert calls.unary("X", {}).text("a") == "b"


def test_a_refusal_says_when_to_come_back(tmp_path: Path) -> None:
    body = b'{"code":"resource_exhausted","message":"too many sessions"}'
    head = b"HTTP/1.1 429 x\r\nK8E-Error: exhausted\r\nk8e-retry-after-s: 1.500\r\ncontent-length: %d\r\n\r\n" % len(
        body
    )
    with saying(tmp_path, head + body) as calls, pytest.raises(Exhausted, match="too many") as refused:
        calls.unary("X", {})
    assert refused.value.retry_after_s == 1.5


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def test_messages_may_be_cut_anywhere(tmp_path: Path) -> None:
    whole = envelope(b'{"n":1}') + envelope(b'{"n":"2"}') + envelope(b"{}", 2)
    pieces = chunked(*(whole[at : at + 3] for at in range(0, len(whole), 3))) + b"0\r\n\r\n"
    with saying(tmp_path, OK + b"transfer-encoding: chunked\r\n\r\n" + pieces) as calls:
        assert [each.number("n") for each in calls.stream("X", [{}])] == [1, 2]


def test_a_stream_without_an_end_is_a_lost_connection(tmp_path: Path) -> None:
    pieces = chunked(envelope(b'{"n":1}')) + b"0\r\n\r\n"
    with saying(tmp_path, OK + b"transfer-encoding: chunked\r\n\r\n" + pieces) as calls:
        stream = calls.stream("X", [{}])
        assert next(stream).number("n") == 1
        with pytest.raises(Unreachable):
            next(stream)


def test_the_end_of_a_stream_may_be_a_refusal(tmp_path: Path) -> None:
    end = b'{"error":{"code":"not_found","message":"gone"},"metadata":{"k8e-error":["not_found"]}}'
    pieces = chunked(envelope(end, 2)) + b"0\r\n\r\n"
    with (
        saying(tmp_path, OK + b"transfer-encoding: chunked\r\n\r\n" + pieces) as calls,
        pytest.raises(NotFound, match="gone"),
    ):
        only(calls.stream("X", [{}]))


def test_an_answer_that_does_not_come_is_told_after_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.client.light.unix.PATIENCE_S", 0.1)
    with saying(tmp_path, b"", linger=True) as calls, pytest.raises(DeadlineExceeded):
        calls.unary("X", {}, timeout_s=0.1)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{",
        b"HTTP/1.1 500 x\r\ncontent-length: 1\r\n\r\n{",
        b"HTTP/1.1 429 x\r\nk8e-error: exhausted\r\nk8e-retry-after-s: soon\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000,
        b"220 mail.example ESMTP\r\n",
    ],
    ids=range(12),
)
@pytest.mark.parametrize("way", ["unary", "stream"])
def test_nonsense_is_one_of_our_errors(tmp_path: Path, answer: bytes, way: str) -> None:
    with saying(tmp_path, answer) as calls, pytest.raises(SandboxError):
        asked(calls, way)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", OK + b"\r\n", OK + b"transfer-encoding: chunked\r\n\r\n"]))
def test_random_bytes_are_read_or_refused(noise: bytes, head: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(head + noise)
    ours.settimeout(5)
    with Exchange(ours) as exchange, contextlib.suppress(LostConnectionError, OSError):
        exchange.receive_head()
        for _ in exchange.receive_envelopes():
            pass


@pytest.mark.parametrize("value", ["x", [], {}, "é"])
def test_a_field_of_another_kind_is_the_servers_mistake(value: object) -> None:
    answer = Answer({"f": value})
    with pytest.raises(ServerFailed, match="f"):
        answer.number("f")
    with pytest.raises(ServerFailed, match="f"):
        answer.decimal("f")
    assert answer.flag("f") is False


def test_every_command_loads_where_the_system_is_another_one() -> None:
    code = (
        f"import sys\nfor name in {FOREIGN!r}:\n    sys.modules[name] = None\n"
        "import pkgutil, importlib, k8e.cli, k8e.client\n"
        "from k8e.cli.grammar import full_parser\n"
        "full_parser(None)\n"
        "server_only = {'trial'}\n"
        "for package in (k8e.cli, k8e.client):\n"
        "    for each in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if each.name.rpartition('.')[2] not in server_only:\n"
        "            importlib.import_module(each.name)\n"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
