"""`k8e sandbox forward` as a whole process: a real client on a local port, a real server inside."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from k8e.cli.forward import Pair, understood
from k8e.client.errors import InvalidRequest
from tests.support.eventually import eventually

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
PATIENCE_S = 60.0


@pytest.fixture(params=["unix", "grpc"])
def chosen(request: pytest.FixtureRequest, server: Path, environ: dict[str, str]) -> dict[str, str]:
    """The environment of a user who has, or has not, named an endpoint."""
    if request.param == "unix":
        return environ
    doors = json.loads((server / "server" / "server.json").read_text())["doors"]
    return environ | {"K8E_SANDBOX_ENDPOINT": doors["grpc"]}


@pytest.fixture
def session_id(k8e: Run) -> Iterator[str]:
    made = str(json.loads(k8e("create").stdout)["session_id"])
    yield made
    k8e("destroy", made)


@pytest.fixture
def page(k8e: Run, session_id: str) -> int:
    """The port of an HTTP server inside."""
    return serve_page(k8e, "--session-id", session_id)


def serve_page(k8e: Run, *where: str) -> int:
    started = json.loads(
        k8e(
            "run", "--background", *where, "echo inside > page; exec python3 -u -m http.server 0 --bind 127.0.0.1"
        ).stdout
    )
    said = ""

    def is_listening() -> bool:
        nonlocal said
        said = json.loads(k8e("poll", started["run_id"]).stdout)["stdout"]
        return " port " in said

    assert eventually(is_listening)
    return int(said.split(" port ")[1].split()[0])


@contextmanager
def forwarding(
    environ: dict[str, str], *words: str, lines: int = 1
) -> Iterator[tuple[subprocess.Popen[bytes], list[dict[str, Any]]]]:
    """The process, and what it printed when it listened."""
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "forward", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        try:
            yield process, [json.loads(process.stdout.readline()) for _ in range(lines)]
        finally:
            process.kill()


def fetched(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/page")
        return connection.getresponse().read()
    finally:
        connection.close()


def test_a_server_inside_is_reached_until_an_interrupt(chosen: dict[str, str], session_id: str, page: int) -> None:
    with forwarding(chosen, session_id, f"0:{page}", f"0:{page}", lines=2) as (process, told):
        for each in told:
            assert (each["session_id"], each["address"], each["remote_port"]) == (session_id, "127.0.0.1", page)
            assert fetched(each["local_port"]) == b"inside\n"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, rest, errors) == (130, b"", b"")
    with pytest.raises(ConnectionRefusedError):
        fetched(told[0]["local_port"])


def test_without_a_session_it_is_the_shared_one(k8e: Run, environ: dict[str, str]) -> None:
    page = serve_page(k8e)
    with forwarding(environ, f"0:{page}") as (_, told):
        assert fetched(told[0]["local_port"]) == b"inside\n"


def test_a_port_where_nobody_listens_yet_is_said_and_the_forward_goes_on(
    environ: dict[str, str], session_id: str, page: int
) -> None:
    with forwarding(environ, session_id, "0:9", f"0:{page}", lines=2) as (process, told):
        peer = socket.create_connection(("127.0.0.1", told[0]["local_port"]), timeout=PATIENCE_S)
        with peer, pytest.raises(ConnectionResetError):
            peer.recv(1)
        assert process.stderr is not None
        assert b"nothing listens on port 9 inside: start the server first" in process.stderr.readline()
        assert fetched(told[1]["local_port"]) == b"inside\n"


def test_the_end_of_the_session_is_said_and_ends_it(k8e: Run, environ: dict[str, str]) -> None:
    session_id = str(json.loads(k8e("create").stdout)["session_id"])
    with forwarding(environ, session_id, "0:8000") as (process, _):
        k8e("destroy", session_id)
        rest, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert json.loads(rest) == {"error": "not found", "detail": f"session {session_id} has ended"}


def test_a_local_port_that_is_taken_is_bad_input_with_the_fix(k8e: Run, session_id: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = k8e("forward", session_id, f"{port}:8000")
    value = json.loads(done.stdout)
    assert (done.returncode, value["error"]) == (1, "invalid request")
    assert value["detail"] == (
        f"127.0.0.1:{port} is taken on this machine: name another port, or 0:8000 for any that is free"
    )


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 1, "missing: [SESSION] [LOCAL:]REMOTE"),
        (("80O0:8000",), 1, "'80O0:8000' is not LOCAL:REMOTE"),
        (("some-session",), 1, "'some-session' is not LOCAL:REMOTE"),
        (("8000", "some-session"), 1, "'some-session' is not LOCAL:REMOTE"),
        (("0:0",), 1, "'0:0' is not LOCAL:REMOTE"),
        (("8000:",), 1, "'8000:' is not LOCAL:REMOTE"),
        (("no-such-session", "8000"), 1, "session no-such-session not found"),
        (("--address", "192.0.2.1", "0:8000"), 1, "cannot listen at 192.0.2.1:0"),
    ],
    ids=str,
)
def test_a_mistake_is_bad_input(k8e: Run, words: tuple[str, ...], code: int, text: str) -> None:
    done = k8e("forward", *words)
    assert done.returncode == code
    assert text in json.loads(done.stdout)["detail"]


@pytest.mark.parametrize(
    ("words", "session_id", "pairs"),
    [
        (["8000"], "", [Pair(8000, 8000)]),
        (["8080:8000", "0:22"], "", [Pair(8080, 8000), Pair(0, 22)]),
        (["sid", "65535:1"], "sid", [Pair(65535, 1)]),
        (["sess:1", "80"], "sess:1", [Pair(80, 80)]),
    ],
)
def test_a_session_comes_first_or_not_at_all(words: list[str], session_id: str, pairs: list[Pair]) -> None:
    assert understood(words) == (session_id, pairs)


@pytest.mark.parametrize("word", ["65536", "1:65536", "65536:1", "-1", "1:2:3", "", "٣", "1.5", "http"])
def test_what_is_no_pair_is_refused(word: str) -> None:
    with pytest.raises(InvalidRequest, match="is not LOCAL:REMOTE"):
        understood(["sid", word])
