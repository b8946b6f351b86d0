"""The real daemon, its client and its deaths; what a sandbox would do is done from inside its namespace."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import dns.message
import pytest

from k8e.egress import client as server_end
from k8e.egress import netns
from k8e.egress.client import EgressClient, _Channel
from k8e.egress.control import dial, encode
from k8e.egress.layout import Home
from k8e.egress.ruleset import GATEWAY
from k8e.errors import HostUnsupported, SandboxFailed
from k8e.model import Decision, EgressMode, EgressPolicy, Grant, HostRule, NetRule, SandboxId, Verdict
from tests.support.upstreams import CLOSED, OPEN, Upstream
from tests.support.written import contents

pytestmark = pytest.mark.anyio

_PATIENCE_S = 60.0
_TRY_S = 2.0
"""For one try of several, where nobody answers until something has happened."""


@pytest.fixture
async def network(data_dir: Path) -> AsyncIterator[EgressClient]:
    async with EgressClient.open(data_dir) as client:
        yield client


def _policy(far: Upstream, *ports: int) -> EgressPolicy:
    rules = tuple(NetRule(network=f"{far.address}/32", port=port) for port in ports or (OPEN,))
    return EgressPolicy(mode=EgressMode.LIST, rules=rules)


def _name() -> SandboxId:
    return SandboxId(f"t-{secrets.token_hex(4)}")


class Guest:
    """What a program in the sandbox could do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        namespace = netns.open_held(self._path)
        try:
            return netns.inside(namespace, lambda: socket.create_connection((address, port), timeout=timeout_s))
        finally:
            os.close(namespace)

    async def connect(self, address: str, port: int, timeout_s: float = _PATIENCE_S) -> socket.socket:
        return await asyncio.to_thread(self._connect, address, port, timeout_s)

    async def asks(self, name: str) -> None:
        """Hear an answer about a name, whatever it is."""
        question = dns.message.make_query(name, "A").to_wire()
        namespace = netns.open_held(self._path)
        try:
            with netns.inside(namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
                sock.settimeout(_PATIENCE_S)
                sock.sendto(question, (GATEWAY, 53))
                assert await asyncio.to_thread(sock.recv, 512)
        finally:
            os.close(namespace)

    async def echoes(self, address: str, port: int, timeout_s: float = _PATIENCE_S) -> bool:
        """Whether the far end answers; a daemon that serves says no at once, and only without one is there silence."""
        try:
            with await self.connect(address, port, timeout_s) as connection:
                return await asyncio.to_thread(_echoes, connection)
        except OSError:
            return False


def _echoes(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"hello")
        return connection.recv(5) == b"hello"
    except OSError:
        return False


async def _pid(data_dir: Path) -> int:
    """Of the daemon that serves now, asked on a connection of its own."""
    reader, writer = await dial(Home.of(data_dir).socket)
    try:
        writer.write(encode({"id": 1, "do": "status"}))
        while True:
            answer = json.loads(await reader.readline())
            if "ok" in answer:
                return int(answer["ok"]["pid"])
    finally:
        writer.close()
        await writer.wait_closed()


async def _kill(data_dir: Path) -> int:
    """As the out-of-memory killer would; returns when it is dead."""
    pid = await _pid(data_dir)
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(_wait_readable, descriptor)
    os.close(descriptor)
    return pid


def _wait_readable(descriptor: int) -> None:
    assert select.select([descriptor], [], [], _PATIENCE_S)[0]


# --- attaching -----------------------------------------------------------------------------------------------------------


async def test_a_new_sandbox_reaches_nothing_until_it_is_told_what_it_may(network: EgressClient, far: Upstream) -> None:
    sandbox = _name()
    guest = Guest(await network.attach(sandbox))
    assert not await guest.echoes(far.address, OPEN)
    await network.set_policy(sandbox, _policy(far))
    assert await guest.echoes(far.address, OPEN)
    assert not await guest.echoes(far.address, CLOSED)
    assert far.accepted == {OPEN: 1, CLOSED: 0}
    await network.detach(sandbox)


async def test_attaching_and_detaching_can_be_repeated(network: EgressClient, data_dir: Path) -> None:
    sandbox = _name()
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(network.attach(sandbox)) for _ in range(5)]
    assert len({task.result() for task in asked}) == 1
    assert await network.attached() == {sandbox}
    for _ in range(2):
        await network.detach(sandbox)
    assert await network.attached() == frozenset()
    with pytest.raises(SandboxFailed, match="not found"):
        await network.set_policy(sandbox, EgressPolicy())


async def test_an_address_is_not_given_again_soon_even_by_the_next_daemon(data_dir: Path) -> None:
    seen = []
    for _ in range(2):
        async with EgressClient.open(data_dir) as client:
            for _ in range(12):
                sandbox = _name()
                path = await client.attach(sandbox)
                seen.append(json.loads((Home.of(data_dir).members / f"{sandbox}.json").read_text())["index"])
                await client.detach(sandbox)
                assert not path.exists()
    assert len(set(seen)) == len(seen)


async def test_names_that_would_be_paths_are_refused(network: EgressClient) -> None:
    for name in ("../escape", "a/b", "", ".", ".hidden"):
        with pytest.raises(SandboxFailed, match="no name of a sandbox"):
            await network.attach(SandboxId(name))


# --- policies and decisions ----------------------------------------------------------------------------------------------


async def test_a_connection_that_is_no_longer_allowed_is_cut(network: EgressClient, far: Upstream) -> None:
    sandbox = _name()
    guest = Guest(await network.attach(sandbox))
    await network.set_policy(sandbox, _policy(far, OPEN, CLOSED))
    with await guest.connect(far.address, OPEN) as kept, await guest.connect(far.address, CLOSED) as cut:
        assert await asyncio.to_thread(_echoes, kept)
        assert await asyncio.to_thread(_echoes, cut)
        await network.set_policy(sandbox, _policy(far, OPEN))
        assert not await asyncio.to_thread(_echoes, cut)
        assert await asyncio.to_thread(_echoes, kept)
    await network.detach(sandbox)


async def test_decisions_are_heard_also_those_made_while_no_server_ran(data_dir: Path, far: Upstream) -> None:
    sandbox = _name()
    async with EgressClient.open(data_dir) as client:
        guest = Guest(await client.attach(sandbox))
        await client.set_policy(sandbox, _policy(far))
        assert await guest.echoes(far.address, OPEN)
        heard = await _hear(client, lambda each: each.verdict is Verdict.ALLOWED)
        assert (heard.sandbox, heard.address, heard.port) == (sandbox, far.address, OPEN)
    assert not await guest.echoes(far.address, CLOSED)
    async with EgressClient.open(data_dir) as client:
        heard = await _hear(client, lambda each: each.verdict is Verdict.DENIED)
        assert (heard.sandbox, heard.address, heard.port) == (sandbox, far.address, CLOSED)
        await client.detach(sandbox)


async def _hear(client: EgressClient, wanted: Callable[[Decision], bool]) -> Decision:
    async with asyncio.timeout(_PATIENCE_S):
        async for decision in client.decisions():
            if wanted(decision):
                return decision
    raise AssertionError


# --- its deaths ----------------------------------------------------------------------------------------------------------


async def test_without_the_daemon_nothing_passes_and_the_next_one_knows_the_policy(
    data_dir: Path, far: Upstream
) -> None:
    sandbox = _name()
    async with EgressClient.open(data_dir) as client:
        guest = Guest(await client.attach(sandbox))
        await client.set_policy(sandbox, _policy(far))
        assert await guest.echoes(far.address, OPEN), "the control: it passed while the daemon ran"
    # No server watches it now.
    open_one = await guest.connect(far.address, OPEN)
    assert await asyncio.to_thread(_echoes, open_one), "and also without a server"
    await _kill(data_dir)
    assert not await asyncio.to_thread(_echoes, open_one)
    open_one.close()
    taken = dict(far.accepted)
    for port in (OPEN, CLOSED):
        assert not await guest.echoes(far.address, port, 0.5)
    assert far.accepted == taken
    async with EgressClient.open(data_dir) as client:
        assert await client.attached() == {sandbox}
        assert await guest.echoes(far.address, OPEN)
        assert not await guest.echoes(far.address, CLOSED)
        await client.detach(sandbox)


async def test_a_killed_daemon_comes_back_and_not_one_packet_passes_before_its_policies(
    data_dir: Path, network: EgressClient, far: Upstream
) -> None:
    sandbox = _name()
    guest = Guest(await network.attach(sandbox))
    await network.set_policy(sandbox, _policy(far))
    assert await guest.echoes(far.address, OPEN)
    hammering = True

    async def hammer() -> None:
        while hammering:
            await guest.echoes(far.address, CLOSED, 0.2)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(hammer())
        before = await _kill(data_dir)
        async with asyncio.timeout(_PATIENCE_S):
            while not await guest.echoes(far.address, OPEN, _TRY_S):
                pass
        hammering = False
    assert await _pid(data_dir) != before
    assert far.accepted[CLOSED] == 0
    await network.detach(sandbox)


async def test_requests_that_a_death_cuts_short_are_asked_again(data_dir: Path, network: EgressClient) -> None:
    names = [_name() for _ in range(10)]
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(network.attach(name))
        await _kill(data_dir)
    assert await network.attached() == set(names)
    for name in names:
        await network.detach(name)


async def test_grants_are_given_to_the_next_daemon_and_its_certificate_stays_the_same(
    data_dir: Path, network: EgressClient
) -> None:
    sandbox, grant = _name(), Grant(host="api.test", header="authorization", placeholder="p", value="the-secret")
    await network.attach(sandbox)
    assert await network.set_grants(sandbox, ()) == ""
    certificate = await network.set_grants(sandbox, (grant,))
    assert certificate.startswith("-----BEGIN CERTIFICATE-----")
    await _kill(data_dir)
    assert (await network.status())["grants"] == 1
    assert await network.set_grants(sandbox, (grant,)) == certificate
    written = b"".join(contents(Home.of(data_dir).root).values())
    assert b"the-secret" not in written
    assert b"api.test" in written, "the control: what it is for is kept, so that its placeholder is held back meanwhile"
    await network.detach(sandbox)


async def test_sandboxes_may_end_while_grants_are_given_to_the_next_daemon(
    data_dir: Path, network: EgressClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [_name() for _ in range(3)]
    for name in names:
        await network.attach(name)
        await network.set_grants(name, (Grant(host="api.test", header="authorization", placeholder="p", value="v"),))
    give = _Channel.ask_alone
    ends: list[asyncio.Task[None]] = []

    async def give_while_one_ends(channel: _Channel, do: str, **fields: object) -> object:
        if do == "set_grants" and not ends:
            ends.append(asyncio.create_task(network.detach(names[-1])))
            await asyncio.sleep(0)
        return await give(channel, do, **fields)

    monkeypatch.setattr(_Channel, "ask_alone", give_while_one_ends)
    await _kill(data_dir)
    assert (await network.status())["grants"] in {2, 3}
    await asyncio.gather(*ends)
    assert await network.attached() == set(names[:2])
    for name in names:
        await network.detach(name)


async def test_what_was_taken_away_while_the_daemon_was_dead_is_not_given_to_the_next_one(
    data_dir: Path, network: EgressClient, far: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, grant = _name(), Grant(host="api.test", header="authorization", placeholder="p", value="the-secret")
    guest = Guest(await network.attach(sandbox))
    await network.set_policy(sandbox, _policy(far, OPEN, CLOSED))
    await network.set_grants(sandbox, (grant,))
    assert await guest.echoes(far.address, CLOSED), "the control"
    monkeypatch.setattr("k8e.egress.client._ANSWER_S", 0.2)
    with monkeypatch.context() as dead:
        dead.setattr(server_end, "_spawn", _spawn_nothing)
        await _kill(data_dir)
        with pytest.raises(SandboxFailed, match="no answer"):
            await network.set_policy(sandbox, _policy(far))
        with pytest.raises(SandboxFailed, match="no answer"):
            await network.set_grants(sandbox, (replace(grant, value=""),))
    monkeypatch.setattr("k8e.egress.client._ANSWER_S", _PATIENCE_S)
    assert (await network.status())["grants"] == 0
    assert await guest.echoes(far.address, OPEN)
    assert not await guest.echoes(far.address, CLOSED)
    await network.detach(sandbox)


def _spawn_nothing(_home: Home, _ready: int) -> None:
    raise OSError("no process can be started")


async def test_on_a_full_disk_a_policy_is_in_force_and_no_older_one_comes_back(data_dir: Path, far: Upstream) -> None:
    home, sandbox = Home.of(data_dir), _name()
    with _small_disk(home) as fill:
        async with EgressClient.open(data_dir) as client:
            guest = Guest(await client.attach(sandbox))
            await client.set_policy(sandbox, _policy(far, OPEN, CLOSED))
            assert await guest.echoes(far.address, CLOSED), "the control"
            for _ in range(2):
                fill()
                with pytest.raises(SandboxFailed, match="No space left"):
                    await client.set_policy(sandbox, _policy(far))
            assert await guest.echoes(far.address, OPEN)
            assert not await guest.echoes(far.address, CLOSED)
            await _kill(data_dir)
            assert await client.status()
            assert not await guest.echoes(far.address, CLOSED, 0.5)
            await client.detach(sandbox)


async def test_on_a_full_disk_a_new_name_costs_nobody_the_network(data_dir: Path, far: Upstream) -> None:
    home, sandbox = Home.of(data_dir), _name()
    with _small_disk(home) as fill:
        async with EgressClient.open(data_dir) as client:
            guest = Guest(await client.attach(sandbox))
            rules = (*_policy(far).rules, HostRule(name="far.test"))
            await client.set_policy(sandbox, EgressPolicy(mode=EgressMode.LIST, rules=rules))
            fill()
            with await guest.connect(far.address, OPEN) as connection:
                pid = await _pid(data_dir)
                await guest.asks("far.test")
                await _logged(home, "cannot be written down")
                assert await asyncio.to_thread(_echoes, connection)
                assert await _pid(data_dir) == pid
            await client.detach(sandbox)


@contextlib.contextmanager
def _small_disk(home: Home) -> Iterator[Callable[[], None]]:
    """The members' files on a disk of their own, and how it becomes full."""
    home.make()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(home.members)], check=True)

    def fill() -> None:
        with contextlib.suppress(OSError), (home.members / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    try:
        yield fill
    finally:
        subprocess.run(["umount", str(home.members)], check=True)


async def _logged(home: Home, words: str) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while words not in home.log.read_text():
            await asyncio.sleep(0.01)


async def test_it_goes_when_nobody_needs_it_and_stays_when_somebody_does(data_dir: Path) -> None:
    home, sandbox = Home.of(data_dir), _name()
    async with EgressClient.open(data_dir) as client:
        await client.attach(sandbox)
    pid = await _pid(data_dir)
    assert netns.is_held(home.router)
    async with EgressClient.open(data_dir) as client:
        assert await _pid(data_dir) == pid
        await client.detach(sandbox)
    assert not home.router.exists()
    async with asyncio.timeout(_PATIENCE_S):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.01)


async def test_a_dead_daemons_router_is_removed_when_nobody_needs_it(data_dir: Path) -> None:
    async with EgressClient.open(data_dir) as client:
        client._is_leaving = True  # as if the server stopped in the very moment of the daemon's death
        await _kill(data_dir)
    assert not Home.of(data_dir).router.exists()


def _daemons(data_dir: Path) -> list[str]:
    """The command lines of all that run for this directory; a child of one bears its name until it has its own."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = re.findall(r"^PPid:\t(\d+)$", (path / "status").read_text(), re.MULTILINE)[0]
            if "k8e.egress" in line and str(data_dir) in line:
                found[path.name] = line, parent
    return [line for line, parent in found.values() if parent not in found]


async def test_a_server_that_stops_as_soon_as_its_daemon_serves_takes_it_along(data_dir: Path) -> None:
    async with EgressClient.open(data_dir):
        running = _daemons(data_dir)
    assert len(running) == 1, "the control"
    assert _daemons(data_dir) == []
    assert not Home.of(data_dir).router.exists()


async def test_a_server_that_stops_while_the_next_daemon_is_launched_takes_it_along(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn, launching, may_go, launched = server_end._spawn, threading.Event(), threading.Event(), threading.Event()

    def spawn_late(home: Home, ready: int) -> None:
        launching.set()
        may_go.wait()
        spawn(home, ready)
        launched.set()

    async with EgressClient.open(data_dir):
        monkeypatch.setattr(server_end, "_spawn", spawn_late)
        await _kill(data_dir)
        await asyncio.to_thread(launching.wait)
        asyncio.get_running_loop().call_soon(may_go.set)  # when this block is left
    await asyncio.to_thread(launched.wait)
    assert _daemons(data_dir) == []
    assert not Home.of(data_dir).router.exists()


async def test_a_server_that_stops_before_the_next_daemon_was_greeted_takes_it_along(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, greeted = EgressClient._start, EgressClient._greeted
    started, reached, may_go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def start_and_say_so(client: EgressClient) -> None:
        await start(client)
        started.set()

    async def greet_late(client: EgressClient, channel: _Channel) -> _Channel:
        if started.is_set():  # else it is the old one, in the midst of its death
            reached.set()
            await may_go.wait()
        return await greeted(client, channel)

    async with EgressClient.open(data_dir):
        monkeypatch.setattr(EgressClient, "_start", start_and_say_so)
        monkeypatch.setattr(EgressClient, "_greeted", greet_late)
        await _kill(data_dir)
        await reached.wait()
        assert len(_daemons(data_dir)) == 1, "the control"
        asyncio.get_running_loop().call_soon(may_go.set)  # when this block is left
    assert _daemons(data_dir) == []
    assert not Home.of(data_dir).router.exists()


async def test_a_server_that_stops_while_no_daemon_can_be_started_removes_the_router(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EgressClient.open(data_dir):
        monkeypatch.setattr(server_end, "_spawn", _spawn_nothing)
        await _kill(data_dir)
        assert Home.of(data_dir).router.exists(), "the control"
    assert not Home.of(data_dir).router.exists()


async def test_a_second_daemon_is_refused(data_dir: Path, network: EgressClient) -> None:
    argv = [sys.executable, "-m", "k8e.egress", "--data-dir", str(data_dir)]
    second = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=False)
    assert second.returncode != 0
    assert "another daemon uses" in second.stderr
    assert await network.status()


async def test_a_daemon_that_cannot_start_is_said_with_its_reason(data_dir: Path) -> None:
    Home.of(data_dir).make()
    Home.of(data_dir).router.mkdir()
    with pytest.raises(HostUnsupported, match=r"does not start[\s\S]*router"):
        async with EgressClient.open(data_dir):
            pass


async def test_what_a_crash_left_of_a_detached_sandbox_is_removed(data_dir: Path) -> None:
    home, kept, lost = Home.of(data_dir), _name(), _name()
    async with EgressClient.open(data_dir) as client:
        await client.attach(kept)
        await client.attach(lost)
    await _kill(data_dir)
    (home.members / f"{lost}.json").unlink()
    async with EgressClient.open(data_dir) as client:
        assert await client.attached() == {kept}
        await client.detach(kept)


@pytest.mark.parametrize(
    "nonsense", ['{"index": 2, "policy": {"mode": "open"}}', '{"index": 2, "policy": []}', "[]", ""]
)
async def test_a_damaged_file_makes_a_sandbox_reach_nothing(data_dir: Path, far: Upstream, nonsense: str) -> None:
    home, damaged, sound = Home.of(data_dir), _name(), _name()
    async with EgressClient.open(data_dir) as client:
        guests = {name: Guest(await client.attach(name)) for name in (damaged, sound)}
        for name in guests:
            await client.set_policy(name, _policy(far))
            assert await guests[name].echoes(far.address, OPEN)
        held = netns.open_held(home.namespace(damaged))
    await _kill(data_dir)
    (home.members / f"{damaged}.json").write_text(nonsense)
    async with EgressClient.open(data_dir) as client:
        assert await guests[sound].echoes(far.address, OPEN), "the control"
        with netns.inside(held, socket.socket) as connection:
            connection.settimeout(1.0)
            # The router's kernel may still take it; the daemon does not, and may say so before we hear of the former.
            with contextlib.suppress(ConnectionResetError, TimeoutError):
                connection.connect((far.address, OPEN))
                assert not _echoes(connection)
        os.close(held)
        for name in guests:
            await client.detach(name)
