"""A command whose output was taken up again after the server's death: who leaves it may end it, and need not."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from k8e.client import SandboxClient
from k8e.client.values import Chunk, Exit
from tests.support.eventually import eventually
from tests.support.servers import Server

_COMMAND = "echo first; until [ -e go ]; do sleep 0.05; done; echo second; exec sleep 600"


def _sleeps(client: SandboxClient, session_id: str) -> bool:
    return "sleep" in {process.comm for process in client.processes(session_id)}


def _read(output: Iterator[Chunk | Exit], wanted: bytes) -> None:
    seen = b""
    while seen != wanted:
        item = next(output)
        assert isinstance(item, Chunk)
        seen += item.data


def test_leaving_the_loop_ends_the_command_also_after_a_death(mortal: Server) -> None:
    with SandboxClient(target=mortal.target()) as client:
        session_id = client.create_session(runtime_class="container")
        output = client.exec_output(session_id, _COMMAND)
        assert isinstance(output, Generator)
        _read(output, b"first\n")
        mortal.kill()
        mortal.start()
        client.write_file(session_id, "/workspace/go", "")
        _read(output, b"second\n")
        # From here on it sleeps without a pause.
        assert eventually(lambda: _sleeps(client, session_id))
        output.close()
        assert eventually(lambda: not _sleeps(client, session_id))


@pytest.mark.parametrize("stop", [False, True])
def test_who_only_looks_on_leaves_the_command_alone_unless_told_otherwise(mortal: Server, stop: bool) -> None:
    with SandboxClient(target=mortal.target()) as client:
        session_id = client.create_session(runtime_class="container")
        begun = client.exec_output(session_id, _COMMAND, exec_id="mine")
        _read(begun, b"first\n")
        mortal.kill()
        mortal.start()
        client.write_file(session_id, "/workspace/go", "")
        watching = client.attach_exec(session_id, "mine", stop=stop)
        assert isinstance(watching, Generator)
        _read(watching, b"first\nsecond\n")
        assert eventually(lambda: _sleeps(client, session_id))
        watching.close()
        if stop:
            assert eventually(lambda: not _sleeps(client, session_id))
        else:
            # Whoever looks next finds it as it was.
            _read(client.attach_exec(session_id, "mine"), b"first\nsecond\n")
            assert _sleeps(client, session_id)
