"""The data plane between real network namespaces: sandboxes, the router, a world outside, and a server in it.

    sandbox ── router │ plane │ outside ── server        and, to compare with: sandbox ── server

The plane runs on a thread of its own that lives in `outside`, as the daemon lives in the host's namespace; the names
that exist are the lab's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from k8e.egress import links, netns
from k8e.egress.book import Book
from k8e.egress.desk import Broker, Member
from k8e.egress.links import Slot
from k8e.egress.plane import Plane
from k8e.egress.router import Router
from k8e.egress.routes import KernelRoutes
from k8e.model import Decision, EgressMode, EgressPolicy, Grant, SandboxId
from k8e.policy.entries import parse
from tests.support.wires import until_up

__all__ = ["DIRECT", "OUTSIDE", "PRIVATE", "SERVER", "TALKER", "Guest", "LabMember", "PlaneLab", "policy"]

T = TypeVar("T")

OUTSIDE = "203.0.113.1"
"""The lab's "this machine", as seen by the server."""
SERVER = "203.0.113.2"
"""A documentation range: nobody's, and not private."""
TALKER = "203.0.113.3"
"""Where servers speak first."""
PRIVATE = "10.77.0.2"
"""The same server by a private address."""
DIRECT = "192.0.2.2"
"""The same server over a link of the sandbox's own, past the router."""
_FIRST_INDEX = 2
_PATIENCE_S = 60.0


def policy(*entries: str, connections: int = 2000, bytes_per_s: int = 0, mode: str = "list") -> EgressPolicy:
    return EgressPolicy(
        mode=EgressMode(mode),
        rules=tuple(parse(entry) for entry in entries),
        connections=connections,
        bytes_per_s=bytes_per_s,
    )


@dataclass(slots=True, eq=False)
class LabMember:
    sandbox: SandboxId
    policy: EgressPolicy
    book: Book = field(default_factory=Book)
    grants: tuple[Grant, ...] = ()


@dataclass(slots=True, eq=False)
class Guest:
    """A sandbox without a sandbox: its namespace, and what the plane knows of it."""

    member: LabMember
    slot: Slot

    def do(self, work: Callable[[], T]) -> T:
        """Work inside, on a thread of its own."""
        return netns.inside(self.slot.namespace, work)


class PlaneLab:
    """Also the plane's `Desk`."""

    def __init__(self, directory: Path, *, broker: Broker | None = None) -> None:
        self.names: dict[str, tuple[str, ...]] = {}
        """What exists outside."""
        self.decisions: list[Decision] = []
        self.remembered: list[str] = []
        self.guests: dict[str, Guest] = {}
        self._broker = broker
        self._router = Router.open(directory / "router")
        self.server = netns.make(lambda: links.ip_batch("link set lo up\n"))
        self.outside = netns.make(self._furnish_outside)
        netns.inside(
            self.server,
            lambda: links.ip_batch(
                f"address add {SERVER}/24 dev out0\naddress add {TALKER}/24 dev out0\n"
                f"address add {PRIVATE}/24 dev out0\nlink set out0 up\n"
            ),
        )
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._live_outside, name="plane")
        self._thread.start()
        if not self._started.wait(_PATIENCE_S):
            raise TimeoutError("the plane does not start")

    # --- the desk ---

    def member(self, address: str) -> Member | None:
        guest = self.guests.get(address)
        return None if guest is None else guest.member

    def remember(self, member: Member) -> None:
        self.remembered.append(member.sandbox)

    def tell(self, decision: Decision) -> None:
        self.decisions.append(decision)

    # --- for tests ---

    def add(self, name: str, rules: EgressPolicy, *, is_direct: bool = False) -> Guest:
        index = _FIRST_INDEX + len(self.guests)
        guest = Guest(LabMember(SandboxId(name), rules), self._router.slot(index))
        until_up(guest.slot)
        self.call(lambda: self.guests.__setitem__(guest.slot.address, guest))
        if is_direct:
            guest.do(
                lambda: links.ip_batch(
                    f"link add direct type veth peer name direct netns /proc/{os.getpid()}/fd/{self.server}\n"
                    f"address add 192.0.2.1/24 dev direct\nlink set direct up\n"
                )
            )
            netns.inside(
                self.server, lambda: links.ip_batch(f"address add {DIRECT}/24 dev direct\nlink set direct up\n")
            )
        return guest

    def set_policy(self, guest: Guest, rules: EgressPolicy) -> None:
        def change() -> None:
            guest.member.policy = rules
            self.plane.policy_changed(guest.member)

        self.call(change)

    def gone(self, guest: Guest) -> None:
        self.call(lambda: self.plane.gone(guest.member))

    def connections(self, guest: Guest) -> int:
        """How many of its connections the plane knows."""
        known = self.call(lambda: self.plane._guests.known(guest.member))
        return 0 if known is None else self.call(lambda: len(known.connections))

    def spare_pipes(self) -> set[int]:
        """The descriptors of empty pipes that the plane keeps for the next connections."""

        def find() -> set[int]:
            assert self.plane._proxy is not None
            return {end for pipe in self.plane._proxy._pump._pipes._spare for end in (pipe.out, pipe.into)}

        return self.call(find)

    def carried(self, guest: Guest) -> int:
        """Bytes received by its open connections."""
        return self.carried_by(guest)[0]

    def carried_by(self, *guests: Guest) -> tuple[int, ...]:
        """The same of each of them, at one moment."""

        def count(guest: Guest) -> int:
            known = self.plane._guests.known(guest.member)
            pairs = [each.pair for each in known.connections] if known is not None else []
            return sum(pair.received for pair in pairs if pair is not None)

        return self.call(lambda: tuple(map(count, guests)))

    def told(self, guest: Guest, verdict: str, **fields: object) -> list[Decision]:
        """What was told of a sandbox so far, of those decisions that have these fields."""
        return [
            each
            for each in list(self.decisions)
            if each.sandbox == guest.member.sandbox
            and each.verdict == verdict
            and all(getattr(each, name) == value for name, value in fields.items())
        ]

    def call(self, work: Callable[[], T]) -> T:
        """Work on the plane's own loop."""

        async def on_loop() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(_PATIENCE_S)

    def spawn(self, namespace: int, *argv: str) -> subprocess.Popen[bytes]:
        """A Python program in a namespace; ended with the lab."""
        process = netns.inside(
            namespace,
            lambda: subprocess.Popen(
                [sys.executable, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            ),
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(_PATIENCE_S)
        for guest in self.guests.values():
            guest.slot.close()
        for namespace in (self.outside, self.server):
            os.close(namespace)
        self._router.remove()

    # --- inside ---

    def _furnish_outside(self) -> None:
        links.ip_batch(
            f"link set lo up\n"
            f"link add out0 type veth peer name out0 netns /proc/{os.getpid()}/fd/{self.server}\n"
            f"address add {OUTSIDE}/24 dev out0\naddress add 10.77.0.1/24 dev out0\nlink set out0 up\n"
        )

    def _live_outside(self) -> None:
        netns.inside(self.outside, lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        with contextlib.closing(KernelRoutes()) as routes, contextlib.closing(self._router.listen()) as sockets:
            self.plane = Plane(self, routes, resolve=self._resolve, broker=self._broker)
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(self.plane.serve(sockets.tcp, sockets.dns_udp, sockets.dns_tcp))
                self._started.set()
                await self._stopped.wait()
                serving.cancel()

    async def _resolve(self, name: str) -> tuple[str, ...]:
        return self.names.get(name, ())
