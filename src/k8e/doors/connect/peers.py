"""Whose process is at the other end of a unix socket, by the kernel's word."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

__all__ = ["PeerCredentials", "credentials_of", "uid_of"]

_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """As they were when the peer connected; what it becomes later changes nothing."""

    pid: int
    uid: int
    gid: int


def credentials_of(sock: socket.socket) -> PeerCredentials:
    return PeerCredentials(*_asked(sock))


def uid_of(sock: socket.socket) -> int:
    return _asked(sock)[1]


def _asked(sock: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid
