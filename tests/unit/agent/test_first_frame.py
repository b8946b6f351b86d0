"""Who may talk to an agent: the dialer's first frame says who it is, and the agent obeys the highest epoch."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from k8e.wire import frames
from k8e.wire.aio import Credentials, DialRefused, Link, RemoteError
from k8e.wire.mux import Mux
from tests.support.agents import TIMEOUT_S, AgentRoot, dialled, execute, follow, request, start_agent
from tests.support.credentials import CREDENTIALS

pytestmark = pytest.mark.anyio


@pytest.fixture
async def listening(agent_root: AgentRoot) -> AsyncIterator[AgentRoot]:
    """An agent that has answered once."""
    async with dialled(agent_root):
        yield agent_root


async def dial(root: AgentRoot, credentials: Credentials) -> Link:
    while True:
        try:
            return await Link.dial(root.socket, credentials, timeout_s=TIMEOUT_S)
        except BlockingIOError:  # its backlog is full
            await asyncio.sleep(0.005)


def at(epoch: int) -> Credentials:
    return replace(CREDENTIALS, epoch=epoch)


@pytest.mark.parametrize(
    "secret", ["", "guessed", CREDENTIALS.secret + "x", CREDENTIALS.secret[:-1], "\udcff", "ä" * 9]
)
async def test_without_the_secret_nobody_is_served(listening: AgentRoot, secret: str) -> None:
    with pytest.raises(DialRefused, match="does not accept these credentials") as refused:
        await dial(listening, replace(CREDENTIALS, secret=secret, epoch=9))
    assert not refused.value.is_superseded
    async with await dial(listening, CREDENTIALS) as link:
        assert (await execute(link, shell="echo served")).stdout == b"served\n"


async def test_the_secret_is_nowhere_inside_once_the_agent_listens(listening: AgentRoot) -> None:
    assert not (listening.socket.parent / "secret").exists()
    async with await dial(listening, CREDENTIALS) as link:
        # The words are put together inside, so that the command itself does not hold them.
        head, tail = CREDENTIALS.secret[:9], CREDENTIALS.secret[9:]
        find = f'for f in /proc/1/environ /proc/1/cmdline /proc/self/environ; do grep -a "{head}""{tail}" $f; done; echo looked'
        found = await execute(link, shell=find)
    assert found.stdout == b"looked\n", found


def _first_words() -> dict[str, bytes]:
    asks = Mux(is_dialer=True)
    asks.open("exec", request(shell="touch /workspace/ran"))
    twice = Mux(is_dialer=True)
    twice.hello(CREDENTIALS.fields())
    twice.hello(CREDENTIALS.fields())
    strange = [
        {**CREDENTIALS.fields(), **change}
        for change in ({"epoch": -1}, {"epoch": "1"}, {"epoch": 2**70}, {"role": "root"})
    ]
    return {
        "a request": b"".join(asks.output(1 << 20)),
        "two of them": b"".join(twice.output(1 << 20)),
        "not JSON": frames.frame(0, frames.HELLO, b"{"),
        "not an object": frames.frame(0, frames.HELLO, b"[]"),
        **{f"strange {index}": frames.frame(0, frames.HELLO, _packed(each)) for index, each in enumerate(strange)},
    }


def _packed(fields: object) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize("words", _first_words())
async def test_any_other_first_frame_ends_the_connection(agent_root: AgentRoot, words: str) -> None:
    async with dialled(agent_root) as owner:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(TIMEOUT_S)
            peer.connect(str(agent_root.socket))
            peer.sendall(_first_words()[words])
            while await asyncio.to_thread(peer.recv, 65536):
                pass  # it may be told why before it is hung up on
        if words == "two of them":
            return  # it had the secret, and so it was the owner until its second word
        assert (await execute(owner, shell="ls /workspace; echo still here")).stdout == b"still here\n"


async def test_the_higher_epoch_owns_and_a_lower_one_is_refused(agent_root: AgentRoot) -> None:
    async with dialled(agent_root) as first:
        args = request(shell="while [ ! -e /workspace/go ]; do sleep 0.01; done; echo went on")
        await (await first.open("exec", args)).receive()
        async with await dial(agent_root, at(5)) as second:
            async with asyncio.timeout(TIMEOUT_S):
                await first.closed()
            for epoch in (1, 4):
                with pytest.raises(DialRefused, match=r"another gateway owns the sandbox now \(epoch 5\)") as refused:
                    await dial(agent_root, at(epoch))
                assert refused.value.is_superseded
            # The refused ones have taken nothing from it, and what the first had started goes on for the second.
            await execute(second, shell="touch /workspace/go")
            ended = await follow(await second.open("attach", {"id": args["id"], "offsets": {"1": 0, "2": 0}}))
            assert ended.stdout == b"went on\n"


async def test_of_equal_epochs_the_newest_is_served(agent_root: AgentRoot) -> None:
    async with dialled(agent_root) as first, await dial(agent_root, CREDENTIALS) as second:
        async with asyncio.timeout(TIMEOUT_S):
            await first.closed()
        assert (await execute(second, shell="echo new")).stdout == b"new\n"


async def test_followers_read_beside_the_owner_and_change_nothing(agent_root: AgentRoot) -> None:
    async with dialled(agent_root) as owner, AsyncExitStack() as stack:
        await execute(owner, shell="echo content > /workspace/file")
        follower = replace(CREDENTIALS, epoch=0, is_follower=True)
        followers = [await stack.enter_async_context(await dial(agent_root, follower)) for _ in range(16)]
        for each in followers:
            read = await follow(await each.open("file.read", {"path": "/workspace/file", "offset": 0, "length": None}))
            assert read.stdout == b"content\n"
            for op, args in (
                ("exec", request(shell="touch /workspace/ran")),
                ("file.remove", {"path": "/workspace/file", "recursive": False}),
                ("configure", {"processes": 1}),
                ("attach", {"id": "x", "offsets": {}}),
                ("oom", {}),
                ("tcp", {"port": 1}),
            ):
                with pytest.raises(RemoteError, match="a follower may only read"):
                    await each.call(op, args)
        with pytest.raises(DialRefused) as refused:
            await dial(agent_root, follower)
        assert not refused.value.is_superseded
        assert (await execute(owner, shell="ls /workspace")).stdout == b"file\n"


async def test_a_follower_has_so_many_streams_and_no_more(agent_root: AgentRoot) -> None:
    watch = {"path": "/workspace", "recursive": False}
    async with dialled(agent_root) as owner, await dial(agent_root, replace(CREDENTIALS, is_follower=True)) as follower:
        for _ in range(16):
            await (await follower.open("file.watch", watch)).receive()
        with pytest.raises(RemoteError, match="at most 16 streams"):
            await (await follower.open("file.watch", watch)).receive()
        await (await owner.open("file.watch", watch)).receive()


async def test_connections_that_say_nothing_keep_nobody_out(agent_root: AgentRoot) -> None:
    async with dialled(agent_root) as owner:
        silent = [socket.socket(socket.AF_UNIX) for _ in range(30)]
        try:
            for each in silent:
                await asyncio.to_thread(each.connect, str(agent_root.socket))  # waits while the backlog is full
                each.settimeout(TIMEOUT_S)
            async with await dial(agent_root, at(2)) as newer:
                assert (await execute(newer, shell="echo in")).stdout == b"in\n"
            # The oldest were hung up on when there were too many.
            assert await asyncio.to_thread(silent[0].recv, 1) == b""
        finally:
            for each in silent:
                each.close()
        assert owner.is_lost


async def test_an_agent_without_a_secret_does_not_start(tmp_path: Path, agent_root: AgentRoot) -> None:
    """The control beside it is every other test: with one it does."""
    base = tmp_path / "other"
    base.mkdir()
    other = start_agent(base, None, secret="")
    try:
        assert await asyncio.to_thread(other.process.wait, TIMEOUT_S) != 0
        assert "secret is empty" in (base / "run" / "boot-error").read_text()
    finally:
        other.process.kill()
