"""Whose socket is at the other end of a local TCP connection, asked of the kernel (NETLINK_SOCK_DIAG).

Guarantee: an answer is given only for exactly the connection asked for, ESTABLISHED, with an inode. A socket whose
owner closed it is shown by the kernel with uid 0 and inode 0, so anything less exact would make a stranger root.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Final

__all__ = ["SocketTable"]

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
NLM_F_REQUEST: Final = 1
TCP_ESTABLISHED: Final = 1

# struct nlmsghdr; struct inet_diag_req_v2 without its id; struct inet_diag_sockid
HEADER = struct.Struct("=LHHLL")
REQUEST = struct.Struct("=BBBxL")
SOCKID = struct.Struct("!HH16s16s4s8s")
# struct inet_diag_msg: family, state, timer, retrans; the id; expires, rqueue, wqueue, uid, inode
ANSWER_HEAD = struct.Struct("=BBBB")
ANSWER_TAIL = struct.Struct("=LLLLL")
LINE_BITS: Final = 64
"""What everybody with IPv6 has of addresses."""
ENDS_BYTES: Final = 36
"""Ports and addresses: what comes before interface and cookie."""
ANSWER_BYTES: Final = HEADER.size + ANSWER_HEAD.size + SOCKID.size + ANSWER_TAIL.size

Endpoint = tuple[str, int]


class SocketTable:
    """The kernel's table of TCP sockets in this network namespace."""

    def __init__(self) -> None:
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
        # The kernel answers inside the request's own system call; a second is only a guard against waiting for ever.
        self._netlink.settimeout(1.0)
        self._sequence = 0

    def close(self) -> None:
        self._netlink.close()

    def uid_of(self, *, source: Endpoint, target: Endpoint) -> int | None:
        """The uid that owns the socket at `source` connected to `target`, or None when that is not certain."""
        if (family := common_family(source[0], target[0])) is None:
            return None
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        try:
            self._netlink.send(request(family, packed(source, target), self._sequence))
            return uid_in(self._netlink.recv(4096), spellings(source, target), self._sequence)
        except OSError:
            return None

    def holder_of(self, *, source: Endpoint, target: Endpoint) -> str:
        """Whom to count a connection for: its user where that is certain, else the address, or what one line has of them."""
        address = ipaddress.ip_address(source[0])
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        uid = self.uid_of(source=source, target=target) if address.is_loopback else None
        if uid is not None:
            return f"uid:{uid}"
        return str(ipaddress.ip_network((address, LINE_BITS), strict=False) if address.version == 6 else address)


def common_family(source: str, target: str) -> socket.AddressFamily | None:
    versions = {ipaddress.ip_address(source).version, ipaddress.ip_address(target).version}
    if len(versions) != 1:
        return None
    return socket.AF_INET if versions == {4} else socket.AF_INET6


def packed(source: Endpoint, target: Endpoint) -> bytes:
    """Ports and addresses as `inet_diag_sockid` has them, for any interface and without a cookie."""
    addresses = [ipaddress.ip_address(end[0]).packed for end in (source, target)]
    return SOCKID.pack(source[1], target[1], *addresses, bytes(4), b"\xff" * 8)


def spellings(source: Endpoint, target: Endpoint) -> frozenset[bytes]:
    """The two ends as the kernel may show them: an IPv4 connection made through an IPv6 socket, as gRPC's are, has
    mapped addresses."""
    mapped = tuple((f"::ffff:{host}" if ":" not in host else host, port) for host, port in (source, target))
    return frozenset({packed(source, target)[:ENDS_BYTES], packed(*mapped)[:ENDS_BYTES]})


def request(family: int, sockid: bytes, sequence: int) -> bytes:
    body = REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << TCP_ESTABLISHED) + sockid
    return HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, sequence, 0) + body


def uid_in(answer: bytes, ends: frozenset[bytes], sequence: int) -> int | None:
    """The uid in the kernel's answer, only if it speaks of an established, owned socket with exactly those ends."""
    if len(answer) < ANSWER_BYTES:
        return None
    _, kind, _, answered, _ = HEADER.unpack_from(answer)
    if kind != SOCK_DIAG_BY_FAMILY or answered != sequence:
        return None
    _, state, _, _ = ANSWER_HEAD.unpack_from(answer, HEADER.size)
    sockid = answer[HEADER.size + ANSWER_HEAD.size :][: SOCKID.size]
    _, _, _, uid, inode = ANSWER_TAIL.unpack_from(answer, HEADER.size + ANSWER_HEAD.size + SOCKID.size)
    # The lookup by four ends falls back to a listening socket, so the ends are compared again here.
    same_ends = sockid[:ENDS_BYTES] in ends
    return int(uid) if same_ends and state == TCP_ESTABLISHED and inode != 0 else None
