"""`forward`: ports of this machine that lead to servers inside a session, until Ctrl-C."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from k8e.cli.output import print_json, say
from k8e.cli.sharing import in_session
from k8e.client.errors import InvalidRequest, NotFound, SandboxLost
from k8e.client.light.calls import Calls

if TYPE_CHECKING:
    from k8e.client.aio import AsyncSandboxClient

__all__ = ["Pair", "forward_ports", "understood"]

MAX_PORT = 65535
LOOK_EVERY_S = 1.0
"""How long after the end of its session a forward may still wait for connections."""
_PAIR = re.compile(r"(?:([0-9]{1,5}):)?([0-9]{1,5})")


class Pair(NamedTuple):
    local_port: int
    remote_port: int


def forward_ports(args: argparse.Namespace, calls: Calls) -> int:
    args.session_id, pairs = understood(args.words)

    def look(session_id: str) -> str:
        calls.unary("GetSession", {"session_id": session_id})
        return session_id

    session_id = in_session(args, calls, look)
    # Only now: these cost a tenth of a second.
    import asyncio

    from k8e.client.aio import AsyncSandboxClient
    from k8e.client.discovery import discover

    target = discover(
        getattr(args, "endpoint", None),
        os.environ,
        api_key=getattr(args, "apikey", None),
        profile=getattr(args, "profile", None),
        owner=getattr(args, "owner", None) or "",
    )

    async def serve() -> None:
        async with AsyncSandboxClient(target=target) as client:
            await forward_until_it_ends(client, session_id, pairs, args.address)

    asyncio.run(serve())
    return 0


def understood(words: Sequence[str]) -> tuple[str, list[Pair]]:
    """The session, if the first word is no pair of ports, and the pairs. Raises: InvalidRequest."""
    session_id, ports = ("", words) if _PAIR.fullmatch(words[0]) else (words[0], words[1:])
    pairs = []
    for word in ports or words:
        found = _PAIR.fullmatch(word)
        remote = int(found[2]) if found else 0
        local = int(found[1] or remote) if found else 0
        if not 0 < remote <= MAX_PORT or local > MAX_PORT:
            raise InvalidRequest(
                f"{word!r} is not LOCAL:REMOTE: write two ports, as in 8080:8000, one for both, as in 8000, or 0:8000 "
                "for any local port that is free"
            )
        pairs.append(Pair(local, remote))
    return session_id, pairs


async def forward_until_it_ends(
    client: AsyncSandboxClient, session_id: str, pairs: Sequence[Pair], address: str
) -> None:
    """Raises: InvalidRequest where a port cannot be listened at, NotFound or SandboxLost at the session's end."""
    import asyncio
    import contextlib

    async with contextlib.AsyncExitStack() as stack:
        for pair in pairs:
            try:
                made = await client.forward(
                    session_id,
                    pair.remote_port,
                    pair.local_port,
                    address=address,
                    on_error=lambda error: say(str(error)),
                )
            except OSError as error:
                raise InvalidRequest(_reason(error, pair, address)) from error
            forward = await stack.enter_async_context(made)
            print_json(
                {
                    "session_id": session_id,
                    "address": address,
                    "local_port": forward.port,
                    "remote_port": pair.remote_port,
                }
            )
        if sys.stderr.isatty():
            say("forwarding until Ctrl-C")
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                info = await client.get(session_id)
            except NotFound as error:
                raise NotFound(f"session {session_id} has ended") from error
            if info.phase != "Active":
                raise SandboxLost(f"session {session_id} is {info.phase}: nothing can be reached in it any more")


def _reason(error: OSError, pair: Pair, address: str) -> str:
    place = f"{address}:{pair.local_port}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is taken on this machine: name another port, or 0:{pair.remote_port} for any that is free"
    if error.errno == errno.EACCES:
        return f"{place} is not for you to listen at: name a port from 1024 on, as in 8080:{pair.remote_port}"
    return f"address: cannot listen at {place}: {error.strerror or error}"
