"""The way out: a name's addresses as this host sees them, each judged before it is dialled.

A name is never dialled by anything but an address that was judged, so what a name means may change between two look-ups
(rebinding) without any gain.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from k8e.egress.sockets import furnish

__all__ = ["Lookups", "Resolve", "SystemResolver", "Unreachable", "connect"]

Resolve = Callable[[str], Awaitable[tuple[str, ...]]]
"""A canonical name's addresses, none when it has none. Raises: OSError when that could not be found out."""

_DIAL_S = 10.0
_DIAL_EACH_S = 3.0
_RESOLVE_S = 10.0
_FRESH_S = 10.0
_KNOWN = 4096
_THREADS = 32
_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_ADDRFAMILY})


class Unreachable(Exception):
    """Nothing could be dialled; the text says why."""


@dataclass(frozen=True, slots=True)
class _Known:
    addresses: tuple[str, ...]
    until: float


class Lookups:
    """One sandbox's questions to the host's resolver, a few at once.

    One that nobody waits for any more keeps its place until it is answered: a thread that all sandboxes share is still
    busy with it.
    """

    def __init__(self, most: int) -> None:
        self._places = asyncio.Semaphore(most)

    async def find(self, name: str, resolve: Resolve, tasks: asyncio.TaskGroup) -> tuple[str, ...]:
        """Raises: Unreachable when that could not be found out in time."""
        await self._places.acquire()
        asking = tasks.create_task(_outcome(resolve(name)), name=f"look up {name}")
        asking.add_done_callback(lambda _: self._places.release())
        try:
            async with asyncio.timeout(_RESOLVE_S):
                found = await asyncio.shield(asking)
        except TimeoutError as error:
            raise Unreachable("the name could not be looked up in time") from error
        if isinstance(found, OSError):
            raise Unreachable(f"the name could not be looked up: {found.strerror or found}") from found
        if isinstance(found, Exception):
            raise found
        return found


async def _outcome(answer: Awaitable[tuple[str, ...]]) -> tuple[str, ...] | Exception:
    """An error as a value: it is this question's affair, not the group's."""
    try:
        return await answer
    except Exception as error:  # noqa: BLE001 - raised again by whoever waits
        return error


class SystemResolver:
    """What the host's own resolver says, for a few seconds; every name is asked for once at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="k8e-resolve")
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Future[tuple[str, ...]]] = {}

    async def __call__(self, name: str) -> tuple[str, ...]:
        known = self._known.get(name)
        if known is not None and known.until > time.monotonic():
            return known.addresses
        asking = self._asking.get(name)
        if asking is None:
            asking = asyncio.get_running_loop().run_in_executor(self._threads, _look_up, name)
            self._asking[name] = asking
            asking.add_done_callback(lambda done: self._learn(name, done))
        # Others may be waiting for the same answer: one of them giving up must not take it away.
        return await asyncio.shield(asking)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _learn(self, name: str, done: asyncio.Future[tuple[str, ...]]) -> None:
        self._asking.pop(name, None)
        if done.cancelled() or done.exception() is not None:
            return
        self._known.pop(name, None)
        while len(self._known) >= _KNOWN:
            del self._known[next(iter(self._known))]
        self._known[name] = _Known(done.result(), time.monotonic() + _FRESH_S)


def _look_up(name: str) -> tuple[str, ...]:
    try:
        # As every program of this host would look it up: its files, its resolvers, its search list.
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except socket.gaierror as error:
        if error.errno in _NO_SUCH_NAME:
            return ()
        raise
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


async def connect(
    addresses: Sequence[str], port: int, judge: Callable[[str], str], *, is_modest: bool = False
) -> tuple[socket.socket, str]:
    """A connection to the first address that may be dialled and answers, and that address.

    `judge` says why an address must not be dialled, '' if it may be; it is asked right before.

    Raises:
        Unreachable: none of them.
    """
    why = "the name has no address"
    until = time.monotonic() + _DIAL_S
    patience = _DIAL_S if len(addresses) == 1 else _DIAL_EACH_S
    for address in addresses:
        if refusal := judge(address):
            why = f"it leads to {refusal}"
            continue
        left = until - time.monotonic()
        if left <= 0:
            break
        try:
            return await _dial(address, port, min(left, patience), is_modest), address
        except TimeoutError:
            why = "it does not answer"
        except OSError as error:
            why = f"it cannot be reached: {os.strerror(error.errno) if error.errno else error}"
    raise Unreachable(why)


async def _dial(address: str, port: int, timeout_s: float, is_modest: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        furnish(sock, is_modest=is_modest)
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
    except BaseException:
        with contextlib.suppress(OSError):
            sock.close()
        raise
    return sock
