"""Which addresses lead back to this machine, asked of its kernel (NETLINK_ROUTE) for each one that is to be dialled.

A list of the interfaces' addresses would not do: a whole prefix can be routed to this machine (`ip route add local
192.0.2.0/24 dev lo`), and then each address in it reaches every server that listens on all addresses.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from typing import Final

from k8e.policy.targets import Address

__all__ = ["KernelRoutes", "meaning"]

RTM_NEWROUTE: Final = 24
RTM_GETROUTE: Final = 26
NLMSG_ERROR: Final = 2
NLM_F_REQUEST: Final = 1
RTA_DST: Final = 1
RTA_OIF: Final = 4
LOOPBACK_INDEX: Final = 1
"""The loopback interface is the first one of every network namespace."""
RTN_UNICAST: Final = 1
KINDS: Final = {
    2: "one of this machine's own addresses",
    3: "a broadcast address",
    4: "one of this machine's own addresses",  # anycast
    5: "a multicast address",
}
NO_WAY: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL})
"""No route, or one that forbids it: such an address is not this machine, and dialling it says why it fails."""
MOST_LATE_ANSWERS: Final = 16
"""To earlier questions, whose askers did not wait."""
UNKNOWN: Final = "an address of which the kernel does not say where it leads"

# struct nlmsghdr; struct rtmsg; struct rtattr; the error in struct nlmsgerr
HEADER = struct.Struct("=LHHLL")
ROUTE = struct.Struct("=BBBBBBBBL")
ATTRIBUTE = struct.Struct("=HH")
ERROR = struct.Struct("=l")


class KernelRoutes:
    """The routes of the network namespace in which this object was made."""

    def __init__(self) -> None:
        self._netlink = _opened()
        self._sequence = 0

    def __call__(self, address: Address) -> str:
        """Why an address leads to nobody else; '' where it leads away. Without a clear answer it counts as leading nowhere."""
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        try:
            self._netlink.send(question(address, self._sequence))
            for _ in range(MOST_LATE_ANSWERS):
                answer = self._netlink.recv(4096)
                if sequence_of(answer) == self._sequence:
                    return meaning(answer, self._sequence)
        except OSError:
            self._netlink.close()
            self._netlink = _opened()
        return UNKNOWN

    def close(self) -> None:
        self._netlink.close()


def _opened() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    # The kernel answers inside the request's own system call; a second is only a guard against waiting for ever.
    netlink.settimeout(1.0)
    return netlink


def sequence_of(answer: bytes) -> int:
    """Which question it answers; -1 for what is no answer."""
    return int(HEADER.unpack_from(answer)[3]) if len(answer) >= HEADER.size else -1


def question(address: Address, sequence: int) -> bytes:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    body = ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    body += ATTRIBUTE.pack(ATTRIBUTE.size + len(address.packed), RTA_DST) + address.packed
    return HEADER.pack(HEADER.size + len(body), RTM_GETROUTE, NLM_F_REQUEST, sequence, 0) + body


def meaning(answer: bytes, sequence: int) -> str:
    """What the kernel's answer says of the address that was asked about."""
    if len(answer) < HEADER.size + ERROR.size:
        return UNKNOWN
    _, kind, _, answered, _ = HEADER.unpack_from(answer)
    if answered != sequence:
        return UNKNOWN
    if kind == NLMSG_ERROR:
        return "" if -ERROR.unpack_from(answer, HEADER.size)[0] in NO_WAY else UNKNOWN
    if kind != RTM_NEWROUTE or len(answer) < HEADER.size + ROUTE.size:
        return UNKNOWN
    route = ROUTE.unpack_from(answer, HEADER.size)[7]
    if route != RTN_UNICAST:
        return KINDS.get(route, UNKNOWN)
    return KINDS[2] if outgoing_interface(answer) == LOOPBACK_INDEX else ""


def outgoing_interface(answer: bytes) -> int:
    at = HEADER.size + ROUTE.size
    while at + ATTRIBUTE.size <= len(answer):
        length, kind = ATTRIBUTE.unpack_from(answer, at)
        if kind == RTA_OIF:
            return int.from_bytes(answer[at + ATTRIBUTE.size :][:4], sys.byteorder)
        at += max(ATTRIBUTE.size, (length + 3) & ~3)
    return 0
