"""The same conversation over each transport: a unix socket, TCP with TLS, and whatever else carries bytes in order."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from k8e.egress.authority import Authority
from k8e.wire import frames
from k8e.wire.aio import Connect, Credentials, DialRefused, Link, Stream
from tests.support.agents import TIMEOUT_S, AgentRoot, execute, follow, request, start_agent
from tests.support.credentials import CREDENTIALS
from tests.support.ports import lasting_port

pytestmark = pytest.mark.anyio

NAME = "gateway.example"
SANDBOX = "sb-a"
OWNER = Credentials(secret="", epoch=3, sandbox=SANDBOX)
"""By TLS alone: no secret was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsAgent:
    """One that listens on TCP and trusts one authority."""

    root: AgentRoot
    address: tuple[str, int]
    trusted: Authority

    async def dial(self, context: ssl.SSLContext | None = None, credentials: Credentials = OWNER) -> Link:
        chosen = context or self.trusted.context(NAME)
        while True:
            try:
                return await Link.dial_tls(self.address, chosen, credentials, timeout_s=TIMEOUT_S)
            except ConnectionRefusedError:
                assert self.root.process.poll() is None, "the agent did not start"
                await asyncio.sleep(0.005)


@pytest.fixture
async def tls_agent(tmp_path: Path) -> AsyncIterator[TlsAgent]:
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("a PID namespace with its own root needs root")
    trusted = Authority.new()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "authority.pem").write_text(trusted.certificate)
    with lasting_port() as port:
        asked = (
            "--tcp",
            f"127.0.0.1:{port}",
            "--authority",
            "/.k8e-run/authority.pem",
            "--dialer",
            NAME,
            "--sandbox",
            SANDBOX,
        )
        root = start_agent(tmp_path, None, argv=asked)
        yield TlsAgent(root=root, address=("127.0.0.1", port), trusted=trusted)
        root.process.kill()
        await asyncio.to_thread(root.process.wait, TIMEOUT_S)


async def test_over_tls_commands_run_and_every_byte_arrives(tls_agent: TlsAgent) -> None:
    async with await tls_agent.dial() as link:
        content = os.urandom(3_000_000)
        writing = await link.open(
            "exec", args := request(shell="cat > /workspace/in; sha256sum /workspace/in", stdin=True)
        )
        sending = asyncio.create_task(_send(writing, content))
        summed = await follow(writing)
        await sending
        assert summed.stdout.split()[0].decode() == hashlib.sha256(content).hexdigest()
        assert (
            await follow(await link.open("file.read", {"path": "/workspace/in", "offset": 0, "length": None}))
        ).stdout == content
        await link.call("forget", {"id": args["id"]})


async def _send(stream: Stream, content: bytes) -> None:
    await stream.send(0, content)
    await stream.finish(0)


async def test_over_tls_more_than_any_window_arrives_whole(tls_agent: TlsAgent) -> None:
    async with await tls_agent.dial() as link:
        count = 5_000_000
        stream = await link.open("exec", request(shell=f"head -c {count} /dev/zero; echo over >&2"))
        said = await follow(stream)
        assert (len(said.stdout), said.stderr) == (count, b"over\n")


async def test_over_tls_epochs_and_followers_are_the_same(tls_agent: TlsAgent) -> None:
    async with await tls_agent.dial() as first:
        await execute(first, shell="echo content > /workspace/file")
        async with (
            await tls_agent.dial(credentials=replace(OWNER, epoch=4)) as second,
            await tls_agent.dial(credentials=replace(OWNER, is_follower=True)) as follower,
        ):
            async with asyncio.timeout(TIMEOUT_S):
                await first.closed()
            with pytest.raises(DialRefused, match=r"another gateway owns the sandbox now \(epoch 4\)"):
                await tls_agent.dial()
            read = await follow(
                await follower.open("file.read", {"path": "/workspace/file", "offset": 0, "length": None})
            )
            assert read.stdout == b"content\n"
            assert (await execute(second, shell="echo mine")).stdout == b"mine\n"


@pytest.mark.parametrize("who", ["signed by another", "another name"])
async def test_whoever_cannot_show_the_right_certificate_is_never_heard(tls_agent: TlsAgent, who: str) -> None:
    async with await tls_agent.dial() as owner:
        context = (
            Authority.new().context(NAME) if who == "signed by another" else tls_agent.trusted.context("other.example")
        )
        with pytest.raises(OSError):  # noqa: PT011  # which of them depends on who closes first
            await tls_agent.dial(context, replace(OWNER, epoch=9))
        assert (await execute(owner, shell="echo still here")).stdout == b"still here\n"


async def test_a_connection_that_was_meant_for_another_sandbox_is_refused(tls_agent: TlsAgent) -> None:
    """A hostile agent that hands on what it is sent, byte by byte, reaches nothing by it."""
    async with await tls_agent.dial() as owner:
        with pytest.raises(DialRefused):
            await tls_agent.dial(credentials=replace(OWNER, epoch=9, sandbox="sb-b"))
        assert (await execute(owner, shell="echo still here")).stdout == b"still here\n"


async def test_without_tls_nobody_is_heard(tls_agent: TlsAgent) -> None:
    async with await tls_agent.dial() as owner:
        reader, writer = await asyncio.open_connection(*tls_agent.address)
        hello = Credentials(secret="", epoch=9).fields()
        writer.write(frames.frame(0, frames.HELLO, repr(dict(hello)).replace("'", '"').encode()))
        heard = b""
        with suppress(ConnectionResetError):
            async with asyncio.timeout(TIMEOUT_S):
                while piece := await reader.read(4096):  # the beginning of its own handshake, and an alert
                    heard += piece
        assert b"boot" not in heard
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()
        assert (await execute(owner, shell="echo still here")).stdout == b"still here\n"


@asynccontextmanager
async def _piped(far: Path) -> AsyncIterator[Connect]:
    """A transport of another kind in front of a unix socket, which hands on what comes in pieces of a few bytes."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(7):
            sink.write(piece)
            await sink.drain()
        sink.close()

    here, there = await asyncio.open_connection(sock=theirs), await asyncio.open_unix_connection(far)
    async with asyncio.TaskGroup() as group:
        group.create_task(carry(here[0], there[1]))
        group.create_task(carry(there[0], here[1]))
        yield lambda protocol: loop.create_connection(protocol, sock=ours)


async def test_any_transport_will_do_however_it_cuts_the_bytes(agent_root: AgentRoot) -> None:
    while not agent_root.socket.exists():
        assert agent_root.process.poll() is None
        await asyncio.sleep(0.005)
    async with (
        _piped(agent_root.socket) as connect,
        await Link.over(connect, CREDENTIALS, timeout_s=TIMEOUT_S) as link,
    ):
        assert (await execute(link, shell="seq 2000")).stdout.split()[-1] == b"2000"
