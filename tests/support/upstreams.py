"""A server on the other side of the network: a namespace of the test's own, reached from the host by a public address."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import secrets
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from k8e.egress import netns
from k8e.egress.links import ip_batch

__all__ = ["CLOSED", "OPEN", "Upstream", "upstream"]

OPEN, CLOSED = 8080, 8081
"""Ports that policies of tests allow, and do not."""

_BLOCK = 1 << 16
_ATTEMPTS = 3
_numbers = itertools.count()


class Upstream:
    """Listens where it is told; every port has its own conversation."""

    def __init__(self, namespace: int, address: str) -> None:
        self._namespace = namespace
        self.address = address
        """Of a range for documentation: public as far as any rule knows, and nobody's."""
        self._stack = contextlib.ExitStack()
        self.accepted: dict[int, int] = {}

    def listen(self, port: int, converse: Callable[[socket.socket], None]) -> None:
        """Serve every connection to `port` in a thread of its own."""
        listener = netns.inside(self._namespace, lambda: socket.create_server((self.address, port), backlog=512))
        self.accepted[port] = 0
        thread = threading.Thread(target=self._serve, args=(listener, port, converse), name=f"upstream {port}")
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(listener.close)
        self._stack.callback(listener.shutdown, socket.SHUT_RDWR)

    def _serve(self, listener: socket.socket, port: int, converse: Callable[[socket.socket], None]) -> None:
        conversations = []
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self.accepted[port] += 1
                thread = threading.Thread(target=_guarded, args=(connection, converse), name=f"upstream {port} talk")
                thread.start()
                conversations.append((thread, connection))
        for thread, connection in conversations:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()

    def echo(self, port: int) -> None:
        """Give back what comes."""

        def converse(connection: socket.socket) -> None:
            while data := connection.recv(_BLOCK):
                connection.sendall(data)

        self.listen(port, converse)

    def close(self) -> None:
        self._stack.close()
        os.close(self._namespace)


def _guarded(connection: socket.socket, converse: Callable[[socket.socket], None]) -> None:
    with connection, contextlib.suppress(OSError):
        converse(connection)


@contextmanager
def _free_network() -> Iterator[int]:
    """One that no other run of tests on this machine has: the kernel would take both, and mix them up.

    It is to be taken before the block ends: until then nobody else looks which are free.
    """
    with (Path(tempfile.gettempdir()) / "k8e-test-networks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = subprocess.run(["ip", "-o", "-4", "address"], check=True, capture_output=True, text=True).stdout
        yield secrets.choice([first for first in range(0, 256, 4) if f" 198.51.100.{first + 1}/" not in told])


@contextmanager
def upstream() -> Iterator[Upstream]:
    """Needs root; the link is removed with it."""
    name, namespace, address = _linked()
    try:
        server = Upstream(namespace, address)
        try:
            yield server
        finally:
            server.close()
    finally:
        _unlink(name)


def _linked() -> tuple[str, int, str]:
    """The host's end of a new link, the namespace at its other end, and its address there.

    The kernel has been seen to refuse a link as one that exists though both names were free, once in many thousands;
    hence more than one attempt.
    """
    failed = 0
    while True:
        name = f"kt{os.getpid():x}-{next(_numbers):x}"
        try:
            with _free_network() as first:
                host, far = f"198.51.100.{first + 1}", f"198.51.100.{first + 2}"
                return name, _link(name, host, far), far
        except OSError:
            _unlink(name)
            failed += 1
            if failed == _ATTEMPTS:
                raise


def _link(name: str, host: str, far: str) -> int:
    namespace = netns.make(
        lambda: ip_batch(
            f"link set lo up\n"
            f"link add eth0 type veth peer name {name} netns /proc/{os.getpid()}/ns/net\n"
            f"address add {far}/30 dev eth0\n"
            f"link set eth0 up\n"
            f"route add default via {host}\n"
        )
    )
    try:
        ip_batch(f"address add {host}/30 dev {name}\nlink set {name} up\n")
    except OSError:
        os.close(namespace)
        raise
    return namespace


def _unlink(name: str) -> None:
    subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)
