"""The server's end: finds the daemon or starts it, watches it, starts it again when it dies.

Every request can be repeated, so one that the daemon's death cut short is simply asked again of the next one.
"""

from __future__ import annotations

import array
import asyncio
import collections
import contextlib
import fcntl
import itertools
import json
import logging
import os
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from k8e.egress import netns
from k8e.egress.control import VERSION, CountingReader, Fields, dial, encode
from k8e.egress.layout import Home
from k8e.egress.ruleset import GATEWAY
from k8e.errors import HostUnsupported, SandboxFailed
from k8e.model import Availability, Decision, EgressPolicy, Grant, SandboxId
from k8e.policy import wire
from k8e.substrate.local.host.descriptors import readable
from k8e.substrate.local.host.process import identify, wait_death

__all__ = ["EgressClient"]

_log = logging.getLogger(__name__)

_ANSWER_S = 30.0
_START_S = 30.0
_STEP_S = 0.005
_RETRY_S = 0.5
_END_S = 10.0
_KEPT = 10_000
_LOG_TAIL_CHARS = 2000
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class _Gone(Exception):
    """The daemon hung up."""


class _Refused(Exception):
    """The daemon cannot do it; the text says why."""


class _Channel:
    """One connection."""

    def __init__(self, reader: CountingReader, writer: asyncio.StreamWriter, hear: Callable[[Decision], None]) -> None:
        self._reader = reader
        self._handled = 0
        """Bytes of lines that were dealt with."""
        self._progress = asyncio.Event()
        self._writer = writer
        self._hear = hear
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[object]] = {}

    async def ask(self, do: str, **fields: object) -> object:
        """While somebody else reads. Raises: _Gone, _Refused."""
        number, answer = self._send(do, fields)
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def ask_alone(self, do: str, **fields: object) -> object:
        """While nobody else reads. Raises: _Gone, _Refused."""
        number, answer = self._send(do, fields)
        while not answer.done():
            await self._read_one()
        self._waiting.pop(number)
        return answer.result()

    async def read(self) -> None:
        """Until the daemon hangs up."""
        try:
            while True:
                await self._read_one()
        except _Gone:
            return
        finally:
            self.close()

    async def caught_up(self) -> None:
        """Return when everything is dealt with that the daemon had sent by now."""
        while not self._writer.is_closing() and (self._unread() or self._handled < self._reader.received):
            self._progress.clear()
            await self._progress.wait()

    def _unread(self) -> int:
        """Bytes that wait in the socket."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self._writer.get_extra_info("socket").fileno(), termios.FIONREAD, waiting)
        return waiting[0]

    def close(self) -> None:
        self._writer.close()
        self._progress.set()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_Gone())

    def _send(self, do: str, fields: Mapping[str, object]) -> tuple[int, asyncio.Future[object]]:
        if self._writer.is_closing():
            raise _Gone
        number = next(self._numbers)
        self._writer.write(encode({"id": number, "do": do, **fields}))
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        return number, answer

    async def _read_one(self) -> None:
        try:
            line = await self._reader.readline()
            if not line:
                raise _Gone
            self._take(json.loads(line))
            self._handled += len(line)
            self._progress.set()
        except (OSError, ValueError) as error:
            _log.warning("the egress daemon cannot be understood", extra={"error": str(error)})
            raise _Gone from error

    def _take(self, message: Fields) -> None:
        decision, number = message.get("decision"), message.get("id")
        if isinstance(decision, dict):
            self._hear(wire.decision_from_json(decision))
        answer = self._waiting.get(number) if isinstance(number, int) else None
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(_Refused(str(message["error"])))
        else:
            answer.set_result(message.get("ok"))


class EgressClient:
    """Implements the local substrate's `Network`."""

    resolver = GATEWAY
    brokering = Availability(available=True)

    def __init__(self, home: Home) -> None:
        self._home = home
        self._channel: _Channel | None = None
        self._connected = asyncio.Event()
        self._steady = asyncio.Event()
        """Set while no daemon is being started."""
        self._steady.set()
        self._policies: dict[SandboxId, EgressPolicy] = {}
        """What is known to be in force, so that it is not set again."""
        self._owed: dict[SandboxId, EgressPolicy] = {}
        """What was asked for and not confirmed: the first thing that a new daemon hears."""
        self._grants: dict[SandboxId, tuple[Grant, ...]] = {}
        """Given again to a new daemon: it does not write secrets down."""
        self._news: collections.deque[Decision] = collections.deque(maxlen=_KEPT)
        self._arrived = asyncio.Event()
        self._handed_on = asyncio.Event()
        self._handed_on.set()
        self._is_leaving = False
        self._pid = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, data_dir: Path, *, trust: bytes | None = None) -> AsyncIterator[EgressClient]:
        """A daemon that serves, for as long as the block; it goes on afterwards if a sandbox needs it.

        `trust` is a certificate bundle with which it verifies hosts for brokered secrets, beside the machine's own.

        Raises: HostUnsupported, with the end of the daemon's log.
        """
        client = cls(Home.of(data_dir))
        client._home.make()
        client._home.keep_trust(trust)
        channel = await client._connect()
        # Not left to its keeper: the block may be left before that has had its first turn.
        client._use(channel)
        group = asyncio.TaskGroup()
        await group.__aenter__()
        keeping = group.create_task(client._keep(channel), name="egress daemon")
        try:
            yield client
        finally:
            await client._leave()
            keeping.cancel()
            # The group is not told of an error on its way through: it would wrap it, and callers catch ours by name.
            await group.__aexit__(None, None, None)

    # --- the substrate's network -----------------------------------------------------------------------------------

    async def attach(self, sandbox: SandboxId) -> Path:
        """Its network namespace, linked and reaching nothing. Raises: SandboxFailed."""
        return Path(str(await self._ask("attach", sandbox=sandbox)))

    async def detach(self, sandbox: SandboxId) -> None:
        """Take its network away; repeatable. Raises: SandboxFailed."""
        for known in (self._policies, self._owed, self._grants):
            known.pop(sandbox, None)
        await self._ask("detach", sandbox=sandbox)

    async def set_policy(self, sandbox: SandboxId, policy: EgressPolicy) -> None:
        """In force on return. Raises: SandboxFailed."""
        if self._policies.get(sandbox) != policy:
            self._policies.pop(sandbox, None)
            self._owed[sandbox] = policy
            await self._ask("set_policy", sandbox=sandbox, policy=wire.to_json(policy))
            self._owed.pop(sandbox, None)
            self._policies[sandbox] = policy

    async def set_grants(self, sandbox: SandboxId, grants: tuple[Grant, ...]) -> str:
        """The certificate that it must trust, empty without grants. Raises: SandboxFailed."""
        # Before it is asked: a secret that was taken away must not be given to the next daemon, even if this one is dead.
        self._grants[sandbox] = grants
        return str(await self._ask("set_grants", sandbox=sandbox, grants=_written(grants)))

    async def decisions(self) -> AsyncIterator[Decision]:
        """For one consumer; the newest are kept while it is away."""
        while True:
            while self._news:
                yield self._news.popleft()
            # Its consumer has come back for more, so it has dealt with all of them.
            self._handed_on.set()
            self._arrived.clear()
            await self._arrived.wait()

    async def settle(self) -> None:
        """Return when the consumer of `decisions` has dealt with all that were made before this call."""
        if self._channel is not None:
            await self._channel.caught_up()
        await self._handed_on.wait()

    async def attached(self) -> frozenset[SandboxId]:
        return self._home.attached()

    async def status(self) -> Fields:
        """What the daemon says of itself. Raises: SandboxFailed."""
        answer = await self._ask("status")
        return answer if isinstance(answer, dict) else {}

    # --- the daemon ------------------------------------------------------------------------------------------------

    async def _ask(self, do: str, **fields: object) -> object:
        try:
            async with asyncio.timeout(_ANSWER_S):
                while True:
                    await self._connected.wait()
                    channel = self._channel
                    if channel is not None:
                        with contextlib.suppress(_Gone):
                            return await channel.ask(do, **fields)
                    self._connected.clear()
        except TimeoutError as error:
            raise SandboxFailed(
                f"network: {do}", f"no answer from the egress daemon within {_ANSWER_S:.0f} s"
            ) from error
        except _Refused as error:
            raise SandboxFailed(f"network: {do}", error) from error

    async def _keep(self, channel: _Channel | None) -> None:
        """Start the daemon again whenever it is gone."""
        while channel is not None:
            self._use(channel)
            await channel.read()
            self._channel = None
            self._connected.clear()
            channel = None if self._is_leaving else await self._next()

    def _use(self, channel: _Channel) -> None:
        self._channel = channel
        self._connected.set()

    async def _next(self) -> _Channel | None:
        _log.warning("the egress daemon is gone; nothing passes until the next one serves")
        self._steady.clear()
        try:
            return await self._reconnect()
        finally:
            self._steady.set()

    async def _reconnect(self) -> _Channel | None:
        """To the next daemon, however often that must be tried; None when we leave before there is one."""
        while True:
            try:
                channel = await self._connect()
                await self._say_again(channel)
            except (HostUnsupported, _Gone, OSError) as error:
                _log.error("the egress daemon cannot be started", extra={"error": str(error)})
                if self._is_leaving:
                    return None
                await asyncio.sleep(_RETRY_S)
            else:
                return channel

    async def _say_again(self, channel: _Channel) -> None:
        # Of copies: sandboxes come to their end meanwhile too.
        for sandbox, policy in tuple(self._owed.items()):
            with contextlib.suppress(_Refused):
                await channel.ask_alone("set_policy", sandbox=sandbox, policy=wire.to_json(policy))
        for sandbox, grants in tuple(self._grants.items()):
            with contextlib.suppress(_Refused):
                await channel.ask_alone("set_grants", sandbox=sandbox, grants=_written(grants))

    async def _connect(self) -> _Channel:
        """To a running daemon of our version, started if there is none. Raises: HostUnsupported."""
        try:
            async with asyncio.timeout(_START_S):
                while True:
                    try:
                        return await self._greeted(_Channel(*await dial(self._home.socket), self._hear))
                    except (OSError, _Gone):
                        await self._start()
        except TimeoutError as error:
            raise self._no_daemon() from error

    async def _greeted(self, channel: _Channel) -> _Channel:
        hello = await channel.ask_alone("hello")
        if isinstance(hello, dict) and hello.get("version") == VERSION:
            await channel.ask_alone("follow")
            self._pid = int(hello["pid"])
            _log.info("egress daemon connected", extra={"hello": hello})
            return channel
        _log.warning("an egress daemon of another version is replaced", extra={"hello": hello})
        await channel.ask_alone("stop")
        await channel.read()
        raise _Gone

    async def _start(self) -> None:
        """Raises: HostUnsupported when the daemon ends before it serves."""
        mine, its = os.pipe()
        try:
            try:
                await asyncio.to_thread(_spawn, self._home, its)
            finally:
                os.close(its)
            if not await _says_something(mine):
                raise self._no_daemon()
        finally:
            os.close(mine)

    def _no_daemon(self) -> HostUnsupported:
        try:
            said = self._home.log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL_CHARS:]
        except OSError as error:
            said = str(error)
        return HostUnsupported(f"the egress daemon does not start; the end of {self._home.log}:\n{said}")

    async def _leave(self) -> None:
        """Take the daemon and the router along if no sandbox needs them."""
        self._is_leaving = True
        with contextlib.suppress(TimeoutError):
            # One that is being started can be asked to go only when it serves, and would stay behind unasked.
            async with asyncio.timeout(_START_S):
                await self._steady.wait()
            async with asyncio.timeout(_END_S):
                if await self._may_go():
                    await self._ended()
                    await self._wait_alone()

    async def _may_go(self) -> bool:
        """Whether the daemon goes, or is gone."""
        try:
            return self._channel is None or bool(await self._channel.ask("leave"))
        except _Gone:
            return True
        except _Refused:
            return False

    async def _ended(self) -> None:
        """A daemon lets go of its lock a moment before its end."""
        with contextlib.suppress(ProcessLookupError):
            await wait_death(identify(self._pid))

    async def _wait_alone(self) -> None:
        """Until the daemon has ended; a dead one's router is ours to remove."""
        with self._home.lock.open("a") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await asyncio.sleep(_STEP_S)
                    continue
                break
            if not self._home.attached():
                netns.let_go(self._home.router)
                self._home.socket.unlink(missing_ok=True)

    def _hear(self, decision: Decision) -> None:
        self._news.append(decision)
        self._handed_on.clear()
        self._arrived.set()


def _spawn(home: Home, ready: int) -> None:
    """In a session of its own, and nobody's child: it lives on without us. Raises: OSError."""
    with home.log.open("ab") as log:
        subprocess.run(
            [
                *("setsid", "--fork", sys.executable, "-I", "-m", "k8e.egress"),
                *("--data-dir", str(home.data_dir), "--ready", str(ready)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={"PATH": _PATH, "LANG": "C.UTF-8"},
            pass_fds=(ready,),
            check=False,
        )


def _written(grants: tuple[Grant, ...]) -> list[dict[str, object]]:
    return [asdict(grant) for grant in grants]


async def _says_something(descriptor: int) -> bool:
    """False when the other end is closed without a word."""
    await readable(descriptor)
    return bool(os.read(descriptor, 1))
