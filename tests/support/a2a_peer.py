"""The A2A agent as a process of its own, and the official client as other agents use it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import (
    AgentInterface,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

from tests.support.commands import K8E

__all__ = ["Agent", "Told", "ask", "bindings", "data", "peer", "running", "stdout", "text"]

PATIENCE_S = 60.0
PAUSE_S = 0.02
SAID_BYTES = 64 * 1024
bindings = [(binding, version) for version in ("1.0", "0.3") for binding in ("JSONRPC", "HTTP+JSON")]


@dataclass(frozen=True, slots=True)
class Agent:
    """One that serves."""

    url: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def said(self) -> bytes:
        """All that it wrote to standard error."""
        return os.pread(self.errors.fileno(), SAID_BYTES, 0)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextmanager
def running(environ: Mapping[str, str], *flags: str, command: Sequence[str] = ("a2a", "--addr")) -> Iterator[Agent]:
    """`k8e a2a`, or another command that serves it, from when it says so."""
    argv = [str(K8E), *command, "127.0.0.1:0", *flags]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(argv, env=dict(environ), stdin=subprocess.DEVNULL, stderr=said) as process,
    ):
        try:
            yield Agent(_address(process, said), process, said)
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE_S)
                process.kill()


def _address(process: subprocess.Popen[bytes], said: IO[bytes]) -> str:
    """Where it serves, as it says itself."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        told = os.pread(said.fileno(), SAID_BYTES, 0)
        if found := re.search(rb"serving agents on (http://\S+)/(a2a|mcp)\n", told):
            return found[1].decode()
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(told.decode())
        time.sleep(PAUSE_S)


@asynccontextmanager
async def peer(
    url: str, *, key: str = "", binding: str = "JSONRPC", version: str = "1.0", streaming: bool = True
) -> AsyncIterator[Client]:
    """The official client, speaking one binding of one version."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(timeout=PATIENCE_S, headers=headers) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        fitting = [each for each in card.supported_interfaces if _is(each, binding, version)]
        assert len(fitting) == 1
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(fitting)
        config = ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding])
        yield ClientFactory(config).create(card)


def _is(interface: AgentInterface, binding: str, version: str) -> bool:
    return interface.protocol_binding == binding and interface.protocol_version == version


def text(content: str) -> Part:
    return Part(text=content)


def data(content: Any) -> Part:
    return Part(data=ParseDict(content, Value()))


def ask(*parts: Part, context: str = "", task: str = "", at_once: bool = False) -> SendMessageRequest:
    """A message to run something."""
    message = Message(message_id="m", role=Role.ROLE_USER, parts=parts, context_id=context, task_id=task)
    request = SendMessageRequest(message=message)
    request.configuration.return_immediately = at_once
    return request


@dataclass(slots=True)
class Told:
    """What a stream of events has made known so far."""

    task_id: str = ""
    context_id: str = ""
    states: list[int] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    artifacts: dict[str, list[Part]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    events: int = 0

    def hear(self, event: StreamResponse) -> None:
        self.events += 1
        match event.WhichOneof("payload"):
            case "task":
                task = event.task
                self.task_id, self.context_id = task.id, task.context_id
                self._status(task.status.state, task.status.message)
                self.artifacts |= {each.artifact_id: list(each.parts) for each in task.artifacts}
            case "status_update":
                self._status(event.status_update.status.state, event.status_update.status.message)
            case "artifact_update":
                update = event.artifact_update
                name = update.artifact.artifact_id
                assert update.append is (name in self.artifacts)
                assert name not in self.ended
                self.artifacts.setdefault(name, []).extend(update.artifact.parts)
                if update.last_chunk:
                    self.ended.add(name)

    def _status(self, state: TaskState, message: Message) -> None:
        self.states.append(state)
        self.words += [part.text for part in message.parts]

    def text(self, name: str = "stdout") -> str:
        return "".join(part.text for part in self.artifacts.get(name, []))

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = MessageToDict(self.artifacts["result"][0].data)
        return found

    @classmethod
    def all(cls, task: Task) -> Told:
        told = cls()
        told.hear(StreamResponse(task=task))
        return told

    @classmethod
    async def asked(cls, client: Client, request: SendMessageRequest) -> Told:
        """Ask and listen to the end."""
        told = cls()
        async for event in client.send_message(request):
            told.hear(event)
        return told

    @classmethod
    async def got(cls, client: Client, task_id: str) -> Told:
        return cls.all(await client.get_task(GetTaskRequest(id=task_id)))


async def stdout(client: Client, command: str, context: str) -> str:
    """What a shell command prints in a context."""
    return (await Told.asked(client, ask(data({"command": command}), context=context))).text()
