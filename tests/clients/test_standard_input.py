"""`run` passes its standard input on to the program: as much as is read, no terminal's, and never at the price of its end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8e.client import SandboxClient
from tests.support.eventually import eventually
from tests.support.servers import Server

pytestmark = pytest.mark.timeout(120)

_READS = "import sys; print(repr(sys.stdin.read()))"


@pytest.fixture(scope="module")
def session_id(server: Server) -> Iterator[str]:
    with SandboxClient(target=server.target()) as client:
        made = client.create_session()
        yield made
        client.destroy_session(made)


def _argv(session_id: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "k8e", "sandbox", "run", "--session-id", session_id, "--lang", "python", *words]


def _run(server: Server, session_id: str, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        _argv(session_id, *words), env=server.environ, capture_output=True, check=False, timeout=60, **options
    )


@pytest.mark.parametrize("flags", [(), ("--raw",)], ids=["json", "raw"])
def test_a_pipe_and_a_file_are_the_programs_input(
    server: Server, session_id: str, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    given = tmp_path / "given"
    given.write_bytes(b"from a file\0\xff")
    code = "import sys; data = sys.stdin.buffer.read(); sys.exit(len(data)) if data[-1:] == b'\\xff' else print(data)"
    piped = _run(server, session_id, *flags, code, input=b"from a pipe")
    with given.open("rb") as file:
        read = _run(server, session_id, *flags, code, stdin=file)
    shown = json.loads(piped.stdout)["stdout"] if not flags else piped.stdout.decode()
    assert shown == "b'from a pipe'\n"
    assert read.returncode == 13


def test_much_arrives_whole_and_in_order(server: Server, session_id: str) -> None:
    given = "".join(f"{n}\n" for n in range(400_000)).encode()
    code = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    done = _run(server, session_id, "--raw", code, input=given)
    assert done.stdout.decode().strip() == hashlib.sha256(given).hexdigest()


@pytest.mark.parametrize("words", [("-n", _READS), (_READS,)], ids=["-n", "nothing there"])
def test_without_input_a_program_reads_end_of_file(server: Server, session_id: str, words: tuple[str, ...]) -> None:
    given = {"input": b"not for it"} if "-n" in words else {"stdin": subprocess.DEVNULL}
    assert _run(server, session_id, "--raw", *words, **given).stdout == b"''\n"


@pytest.mark.parametrize("words", [(), ("-",)], ids=["nothing", "-"])
def test_code_may_come_from_standard_input(server: Server, session_id: str, words: tuple[str, ...]) -> None:
    done = _run(server, session_id, "--raw", *words, input=b"print(6 * 7)")
    assert done.stdout == b"42\n"


def test_code_from_standard_input_and_none_of_it_contradict_each_other(server: Server, session_id: str) -> None:
    done = _run(server, session_id, "-n", "-", input=b"print(6 * 7)")
    assert done.returncode == 1
    assert "give it as an argument" in json.loads(done.stdout)["detail"]


def test_a_terminal_is_never_read(server: Server, session_id: str) -> None:
    master, slave = pty.openpty()
    try:
        os.write(master, b"typed for the shell\n")
        done = _run(server, session_id, "--raw", _READS, stdin=slave)
        assert done.stdout == b"''\n"
        # It is all still there for whoever reads the terminal next.
        assert os.read(slave, 100) == b"typed for the shell\n"
    finally:
        os.close(master)
        os.close(slave)


def test_input_that_goes_on_does_not_delay_the_programs_end(server: Server, session_id: str) -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"first line\n")
        code = "print(input()); raise SystemExit(9)"
        done = _run(server, session_id, "--raw", code, stdin=reader)  # nobody closes the other end
        assert (done.returncode, done.stdout) == (9, b"first line\n")
    finally:
        os.close(reader)
        os.close(writer)


def test_no_more_is_read_than_the_program_reads_and_a_little_ahead(server: Server, session_id: str) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    written = 0

    def fill() -> int:
        """As much as is taken now; all that ever was."""
        nonlocal written
        with contextlib.suppress(BlockingIOError):
            while True:
                written += os.write(writer, bytes(65536))
        return written

    with SandboxClient(target=server.target()) as client:
        code = "import os, time\nwhile not os.path.exists('/workspace/go'): time.sleep(0.05)"
        process = subprocess.Popen(_argv(session_id, code), env=server.environ, stdin=reader, stdout=subprocess.DEVNULL)
        os.close(reader)
        try:
            at_first = fill()
            assert eventually(lambda: fill() > at_first)
            for _ in range(100):
                fill()
                time.sleep(0.01)
            assert written <= 2 * 2**20
        finally:
            client.write_file(session_id, "/workspace/go", "")
            assert process.wait(60) == 0
            os.close(writer)
