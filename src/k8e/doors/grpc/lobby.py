"""The way from the TLS front to the gRPC server behind it, on which each connection keeps its identity.

Python's gRPC cannot ask for a client certificate without demanding one, so TLS ends in front of it and the bytes go on
over a unix socket. The near end of that is bound to a fresh unguessable name, which gRPC shows as the peer; the table
here says whose connection the name stands for. A peer whose name is not in the table is nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from k8e.identity import TcpPeer

__all__ = ["Lobby"]

NAME_BYTES = 16
TRIES = 200
PAUSE_S = 0.01


class Lobby:
    """One directory that only the server's own user may enter, and the connections that stand in it."""

    def __init__(self, directory: Path, descriptor: int) -> None:
        self._directory = directory
        # A socket's path may have 107 bytes; through the descriptor it is short however deep the directory lies.
        self._base = f"/proc/self/fd/{descriptor}"
        self._peers: dict[str, TcpPeer] = {}
        self._known: dict[str, Callable[[], None]] = {}

    @classmethod
    @contextlib.contextmanager
    def open(cls, directory: Path) -> Iterator[Lobby]:
        directory.mkdir(parents=True, exist_ok=True)
        # SAFETY: whoever can reach the socket inside meets a server without TLS; only our own user may.
        directory.chmod(0o700)
        for left_over in directory.iterdir():
            left_over.unlink()
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield cls(directory, descriptor)
        finally:
            os.close(descriptor)

    @property
    def address(self) -> str:
        """Where the gRPC server listens, as it spells it."""
        return f"unix:{self._base}/grpc"

    def peer_of(self, shown: str) -> TcpPeer | None:
        """Whose connection gRPC means with the name of a peer."""
        return self._peers.get(shown)

    def welcome(self, shown: str) -> None:
        """A call that came through this connection was admitted: it is no stranger's."""
        self._known.get(shown, _nothing)()

    @contextlib.asynccontextmanager
    async def entered(self, peer: TcpPeer, *, known: Callable[[], None]) -> AsyncIterator[socket.socket]:
        """A connection to the gRPC server that stands for `peer` until the block ends; `known` hears of its welcome.

        Raises: OSError.
        """
        name = f"c-{secrets.token_hex(NAME_BYTES)}"
        shown = f"unix:{self._base}/{name}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.setblocking(False)
            self._peers[shown], self._known[shown] = peer, known
            try:
                connection.bind(f"{self._base}/{name}")
                try:
                    await self._dial(connection)
                finally:
                    (self._directory / name).unlink()
                yield connection
            finally:
                del self._peers[shown], self._known[shown]

    async def _dial(self, connection: socket.socket) -> None:
        for _ in range(TRIES):
            try:
                connection.connect(f"{self._base}/grpc")
            except BlockingIOError:  # the server's queue is full; waiting for the socket would not tell when it is not
                await asyncio.sleep(PAUSE_S)
            else:
                return
        raise ConnectionRefusedError("the gRPC server takes no more connections")


def _nothing() -> None: ...
