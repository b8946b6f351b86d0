"""The egress daemon: one process per data directory, which outlives the server that started it.

While it is dead nobody listens in the router, so nothing passes. When it starts it has every member's policy before it
listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from k8e.egress import desk, netns
from k8e.egress.authority import Authority
from k8e.egress.control import VERSION, Control, Fields
from k8e.egress.layout import Home
from k8e.egress.members import Member, Members
from k8e.egress.router import Listeners, Router
from k8e.egress.routes import KernelRoutes
from k8e.egress.spares import Indices, Spares
from k8e.errors import Conflict, NotFound
from k8e.model import Decision, Grant, SandboxId
from k8e.policy import wire
from k8e.policy.targets import LocalRoute

__all__ = ["Daemon", "MakePlane", "Plane", "run"]

_log = logging.getLogger(__name__)

_WRITE_DOWN_S = 0.2
"""How long new names may wait to be written: many come at once."""
_WRITING_SHARE = 0.02
"""Of our time at most: sandboxes that keep thousands of names wait longer, and the connections of the others do not."""
_FULL_S = 5.0
"""How long a disk that took nothing is left alone."""
_LOCK_S = 5.0
"""How long the last daemon may take to end."""
_LOCK_STEP_S = 0.005


class Plane(Protocol):
    """The data plane: resolver and proxy."""

    async def serve(self, tcp: socket.socket, dns_udp: socket.socket, dns_tcp: socket.socket) -> None: ...

    def policy_changed(self, member: desk.Member) -> None:
        """Cut what is no longer allowed, before this returns."""

    def gone(self, member: desk.Member) -> None:
        """Cut everything."""


MakePlane = Callable[[desk.Desk, LocalRoute], Plane]


class Daemon:
    """The members and what may be asked about them; implements the data plane's `Desk`."""

    def __init__(self, home: Home, router: Router, make_plane: MakePlane) -> None:
        self._home = home
        self._members = Members(home.members)
        self._control = Control(self._do)
        self._router = router
        self._plane = make_plane(self, KernelRoutes())
        self._unwritten: set[SandboxId] = set()
        self._has_news = asyncio.Event()
        self._stopped = asyncio.Event()
        self._attaching: dict[SandboxId, asyncio.Lock] = {}
        self.is_leaving = False
        """Nobody needs the router any more."""
        self._restore()
        self._spares = Spares(router, Indices(home.counter), frozenset(member.index for member in self._members))

    def _restore(self) -> None:
        """Keep the members whose namespaces are still there, and the other way round."""
        self._members.load()
        for member in self._members:
            if self._router.is_new or not netns.is_held(self._home.namespace(member.sandbox)):
                self._members.remove(member.sandbox)
        for path in self._home.namespaces.iterdir():
            if self._members.get(SandboxId(path.name)) is None:
                netns.let_go(path)

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until told to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)
        listeners = self._router.listen()
        try:
            async with asyncio.TaskGroup() as tasks, self._control.serving(self._home.socket):
                working = [
                    tasks.create_task(self._serve(listeners), name="data plane"),
                    tasks.create_task(self._write_down(), name="members' files"),
                    tasks.create_task(self._spares.keep_full(), name="spare slots"),
                ]
                ready()
                _log.info("egress daemon ready", extra={"members": len(self._members), "new": self._router.is_new})
                await self._stopped.wait()
                for task in working:
                    task.cancel()
        finally:
            listeners.close()
            self._spares.close()
            self._save_unwritten()

    async def _serve(self, listeners: Listeners) -> None:
        await self._plane.serve(listeners.tcp, listeners.dns_udp, listeners.dns_tcp)

    # --- the data plane's desk -------------------------------------------------------------------------------------

    def member(self, address: str) -> Member | None:
        return self._members.at(address)

    def remember(self, member: desk.Member) -> None:
        self._unwritten.add(member.sandbox)
        self._has_news.set()

    def tell(self, decision: Decision) -> None:
        self._control.tell(decision)

    async def _write_down(self) -> None:
        took_s = 0.0
        while True:
            await self._has_news.wait()
            await asyncio.sleep(max(_WRITE_DOWN_S, took_s / _WRITING_SHARE))
            began = time.monotonic()
            self._save_unwritten()
            took_s = time.monotonic() - began
            if self._unwritten:
                await asyncio.sleep(_FULL_S)
                self._has_news.set()

    def _save_unwritten(self) -> None:
        """What a full disk does not take waits for the next time: it must not cost the others their network."""
        self._has_news.clear()
        for sandbox in tuple(self._unwritten):
            try:
                self._save(sandbox)
            except OSError as error:
                _log.warning("a member cannot be written down", extra={"sandbox": sandbox, "error": str(error)})

    def _save(self, sandbox: SandboxId) -> None:
        """Write down what is new of a sandbox, if anything is. Raises: OSError."""
        member = self._members.get(sandbox)
        if member is not None and sandbox in self._unwritten:
            self._members.save(member)
        self._unwritten.discard(sandbox)

    # --- what the server asks --------------------------------------------------------------------------------------

    async def _do(self, what: str, fields: Fields) -> object:
        match what:
            case "hello":
                return {"version": VERSION, "pid": os.getpid()}
            case "attach":
                return await self._attach(_sandbox(fields))
            case "detach":
                await self._detach(_sandbox(fields))
            case "set_policy":
                self._set_policy(self._known(fields), fields)
            case "set_grants":
                return self._set_grants(self._known(fields), fields)
            case "status":
                return self._status()
            case "leave":
                return self._leave()
            case "stop":
                self._stopped.set()
            case "follow":
                pass  # the conversation itself sees to it
            case _:
                raise ValueError(f"nobody here can {what!r}")
        return None

    def _known(self, fields: Fields) -> Member:
        sandbox = _sandbox(fields)
        member = self._members.get(sandbox)
        if member is None:
            raise NotFound("network of", sandbox)
        return member

    async def _attach(self, sandbox: SandboxId) -> str:
        """Its namespace's place; the same for whoever asks again."""
        path = self._home.namespace(sandbox)
        if self.is_leaving:
            raise Conflict("the network is being removed")
        async with self._attaching.setdefault(sandbox, asyncio.Lock()):
            if self._members.get(sandbox) is None:
                slot = await self._spares.take()
                try:
                    self._members.add(Member(sandbox=sandbox, index=slot.index))
                    netns.hold(slot.namespace, path)
                except OSError:
                    self._members.remove(sandbox)
                    netns.let_go(path)
                    self._spares.free(slot.index)
                    raise
                finally:
                    slot.close()
        return str(path)

    async def _detach(self, sandbox: SandboxId) -> None:
        async with self._attaching.setdefault(sandbox, asyncio.Lock()):
            member = self._members.get(sandbox)
            self._members.remove(sandbox)
            if member is not None:
                self._plane.gone(member)
                self._spares.free(member.index)
            netns.let_go(self._home.namespace(sandbox))
        self._attaching.pop(sandbox, None)

    def _set_policy(self, member: Member, fields: Fields) -> None:
        policy = wire.from_json(_object(fields, "policy"))
        if policy != member.policy:
            member.policy = policy
            self._plane.policy_changed(member)
            self.remember(member)
        try:
            self._save(member.sandbox)
        except OSError:
            # SAFETY: the next daemon must not allow what the old file says.
            self._members.unwrite(member.sandbox)
            raise

    def _set_grants(self, member: Member, fields: Fields) -> str:
        given = fields.get("grants")
        if not isinstance(given, list):
            raise ValueError("grants are a list")  # noqa: TRY004 - wrong content, whatever its type
        member.grants = tuple(_grant(each) for each in given)
        if member.grants and member.authority is None:
            member.authority = Authority.new()
        self._plane.policy_changed(member)
        self.remember(member)
        self._save(member.sandbox)
        return member.authority.certificate if member.grants and member.authority is not None else ""

    def _status(self) -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "members": len(self._members),
            "grants": sum(bool(grant.value) for member in self._members for grant in member.grants),
            "spares": len(self._spares),
            "dropped": self._control.dropped,
        }

    def _leave(self) -> bool:
        """Go, with the router, if nobody needs it; whether we do."""
        if len(self._members):
            return False
        self.is_leaving = True
        self._stopped.set()
        return True


def _sandbox(fields: Fields) -> SandboxId:
    name = fields.get("sandbox")
    # SAFETY: it becomes a file's name.
    if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
        raise ValueError("no name of a sandbox")
    return SandboxId(name)


def _object(fields: Fields, key: str) -> Fields:
    value = fields.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} is an object")  # noqa: TRY004 - wrong content, whatever its type
    return value


def _grant(given: object) -> Grant:
    match given:
        case {"host": str(host), "header": str(header), "placeholder": str(placeholder), "value": str(value)}:
            return Grant(host=host, header=header, placeholder=placeholder, value=value)
    raise ValueError("no grant")  # never what was given: it may hold a secret


def run(data_dir: Path, make_plane: MakePlane, ready: Callable[[], None]) -> None:
    """The whole life of a daemon, which says when it serves. Raises: Conflict when another one has the directory, OSError."""
    home = Home.of(data_dir)
    home.make()
    with _alone(home.lock):
        router = Router.open(home.router)
        if asyncio.run(_live(home, router, make_plane, ready)):
            router.remove()
    _log.info("egress daemon stopped")


async def _live(home: Home, router: Router, make_plane: MakePlane, ready: Callable[[], None]) -> bool:
    daemon = Daemon(home, router, make_plane)
    await daemon.run(ready)
    return daemon.is_leaving


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("a") as file:
        deadline = time.monotonic() + _LOCK_S
        while not _locked(file.fileno()):
            if time.monotonic() > deadline:
                raise Conflict(f"another daemon uses {lock.parent}")
            time.sleep(_LOCK_STEP_S)
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
