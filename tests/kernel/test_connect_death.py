"""The server stops or dies under a call at the JSON door: the command goes on, and its output is taken up again."""

from __future__ import annotations

import base64
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

import pytest

from tests.support.servers import Server

_COMMAND = "seq 100; until [ -e /workspace/go ]; do sleep 0.05; done; seq 101 200"


class Caller:
    """One connection, read as a file."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(server.data_dir / "server" / "k8e.sock"))
        self.file: BinaryIO = self._socket.makefile("rb")

    def close(self) -> None:
        self.file.close()
        self._socket.close()

    def unary(self, rpc: str, request: object) -> Any:
        headers = self._ask(rpc, "application/json", json.dumps(request).encode())
        return json.loads(self.file.read(int(headers["content-length"])))

    def stream(self, rpc: str, request: object) -> Iterator[dict[str, Any]]:
        """Messages until the stream ends or breaks."""
        data = json.dumps(request).encode()
        self._ask(rpc, "application/connect+json", struct.pack(">BI", 0, len(data)) + data)
        while (size := self.file.readline().strip()) and size != b"0":
            envelope = self.file.read(int(size, 16) + 2)[:-2]
            if len(envelope) < int(size, 16) or envelope[0]:
                return
            yield json.loads(envelope[5:])

    def _ask(self, rpc: str, kind: str, body: bytes) -> dict[str, str]:
        head = f"POST /sandbox.v1.SandboxService/{rpc} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
        self._socket.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        assert self.file.readline() == b"HTTP/1.1 200 OK\r\n"
        lines = iter(lambda: self.file.readline().decode().strip(), "")
        return {name: value for name, _, value in (line.partition(": ") for line in lines)}


@pytest.fixture
def callers(mortal: Server) -> Iterator[list[Caller]]:
    made: list[Caller] = []
    yield made
    for caller in made:
        caller.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_command_goes_on_without_the_server_and_is_taken_up_again(
    mortal: Server, callers: list[Caller], end: str
) -> None:
    callers.append(Caller(mortal))
    session_id = callers[0].unary("CreateSession", {"runtime_class": "container"})["session_id"]
    start = {"start": {"session_id": session_id, "command": _COMMAND, "timeout": 300}, "exec_id": "mine"}
    seen = b""
    for message in callers[0].stream("ExecAttach", start):
        seen += base64.b64decode(message.get("chunk", {}).get("data", ""))
        if seen:
            break
    mortal.stop() if end == "stop" else mortal.kill()
    mortal.start()
    callers.append(Caller(mortal))
    callers[1].unary("WriteFile", {"session_id": session_id, "path": "/workspace/go"})
    again = {"session_id": session_id, "exec_id": "mine", "stdout_offset": len(seen)}
    codes = []
    for message in callers[1].stream("AttachExec", again):
        if "exit" in message:
            codes.append(message["exit"]["exit_code"])
        else:
            assert int(message["chunk"]["offset"]) == len(seen)
            seen += base64.b64decode(message["chunk"]["data"])
    assert codes == [0]
    assert seen == b"".join(b"%d\n" % number for number in range(1, 201))
