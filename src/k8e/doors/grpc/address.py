"""Where a door listens."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Address", "Listening", "listening", "listening_sockets", "plain"]

BACKLOG = 1024
WILDCARD_V6 = "::"
ON_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", WILDCARD_V6: "::1"}  # noqa: S104 - where it is reached from here


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    """0 takes any free port."""

    def from_here(self) -> Address:
        """What to dial on this machine: no certificate has the name of all addresses."""
        return Address(ON_THIS_MACHINE.get(self.host, self.host), self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listening:
    """An address that is ours: callers who come before anybody accepts them wait in the kernel's queue."""

    address: Address
    """With its real port."""
    sockets: tuple[socket.socket, ...]

    def close(self) -> None:
        """From now on callers are refused; twice is as good as once."""
        for each in self.sockets:
            each.close()


@contextlib.contextmanager
def listening(addresses: Iterable[Address]) -> Iterator[tuple[Listening, ...]]:
    """All of these addresses until the block ends. Raises: OSError, saying which cannot be had."""
    with contextlib.ExitStack() as stack:
        taken = []
        for each in addresses:
            try:
                opened = listening_sockets(each)
            except OSError as error:
                raise OSError(error.errno, f"cannot listen on {each}; is something else there? ({error})") from error
            one = Listening(Address(each.host, opened[0].getsockname()[1]), tuple(opened))
            taken.append(stack.enter_context(contextlib.closing(one)))
        yield tuple(taken)


def listening_sockets(address: Address) -> list[socket.socket]:
    """One socket for each address that the host's name means, all on one port. Raises: OSError."""
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    try:
        for family, host in dict.fromkeys((family, ends[0]) for family, _, _, _, ends in found):
            port = opened[0].getsockname()[1] if opened else address.port
            opened.append(_listening(family, str(host), port))
    except OSError:
        for each in opened:
            each.close()
        raise
    return opened


def plain(ends: tuple[str, int]) -> tuple[str, int]:
    """An IPv4 end as such, also where an IPv6 socket shows it as a mapped one."""
    host, port = ends[:2]
    return (host.removeprefix("::ffff:") if "." in host else host), port


def _listening(family: int, host: str, port: int) -> socket.socket:
    both = family == socket.AF_INET6 and host == WILDCARD_V6 and socket.has_dualstack_ipv6()
    opened = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    opened.setblocking(False)
    return opened
