"""What runs inside a sandbox and tries to get out, as root there: told in JSON what to attempt, and telling so.

Attempts are made all at once, each told by its own name as one outcome: what came back, or the error that it met. It
runs inside as text, with the standard library only. An attempt `hold` or `crowd` says "ready" and goes on when the file
`go` appears beside it.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["attempt"]

_PATIENCE_S = 40.0
_SILENCE_S = 0.5
_DRIBBLE_S = 0.4
_PAUSE_S = 0.02
_GATEWAY = "100.64.0.1"
_IP_FREEBIND = 15
_A = 1
_REQUESTS = (b"GET ", b"POST ", b"CONNECT ")


def attempt(what: str, **how: Any) -> Any:
    """One attempt's outcome, always something that JSON can say."""
    try:
        return _ATTEMPTS[what](**how)
    except (OSError, http.client.HTTPException, struct.error) as error:
        return "failed: " + type(error).__name__


def _connect(to: Sequence[Any], source: Sequence[Any] | None = None, free: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in to[0] else socket.AF_INET
    if source is None:
        return socket.create_connection(tuple(to), timeout=_PATIENCE_S)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(_PATIENCE_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if free:
            sock.setsockopt(socket.SOL_IP, _IP_FREEBIND, 1)
        sock.bind(tuple(source))
        sock.connect(tuple(to))
    except BaseException:
        sock.close()
        raise
    return sock


def _said(sock: socket.socket, data: bytes) -> str:
    """What comes back, as many bytes as were sent."""
    sock.sendall(data)
    got = b""
    while len(got) < len(data):
        more = sock.recv(65536)
        if not more:
            return "failed: EOF"
        got += more
    return got.hex()


def _tcp(to: Sequence[Any], say: str = "68656c6c6f", source: Sequence[Any] | None = None, free: bool = False) -> str:
    with _connect(to, source, free) as sock:
        return _said(sock, bytes.fromhex(say))


def _web(to: Sequence[Any], requests: list[str]) -> list[str]:
    """The statuses of the answers to each piece that is sent, up to the first that brings none."""
    with _connect(to) as sock:
        statuses = []
        for request in requests:
            try:
                statuses.append(_used(sock, bytes.fromhex(request)))
            except (OSError, http.client.HTTPException):
                return [*statuses, "failed"]
        return statuses


def _udp(to: Sequence[Any], say: str, source: Sequence[Any] | None = None, free: bool = False) -> str:
    family = socket.AF_INET6 if ":" in to[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_SILENCE_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        if free:
            sock.setsockopt(socket.SOL_IP, _IP_FREEBIND, 1)
        if source:
            sock.bind(tuple(source))
        sock.sendto(bytes.fromhex(say), tuple(to))
        return sock.recv(65536).hex()


def _ping(to: str, say: str, kind: str) -> str:
    """An even number of bytes; `kind` is a raw socket or the one that is made for ping."""
    body = struct.pack("!BBHHH", 8, 0, 0, 7, 7) + bytes.fromhex(say)
    summed = sum(struct.unpack(f"!{len(body) // 2}H", body))
    while summed >> 16:
        summed = (summed & 0xFFFF) + (summed >> 16)
    with socket.socket(socket.AF_INET, getattr(socket, kind), socket.IPPROTO_ICMP) as sock:
        sock.settimeout(_SILENCE_S)
        sock.sendto(body[:2] + struct.pack("!H", ~summed & 0xFFFF) + body[4:], (to, 0))
        return sock.recv(65536).hex()


def _question(name: str, kind: int, opcode: int = 0, count: int = 1, rdclass: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    head = struct.pack("!HHHHHH", 7, 0x0100 | opcode << 11, count, 0, 0, 0)
    return head + (labels + b"\0" + struct.pack("!HH", kind, rdclass)) * count


def _dns(
    name: str, kind: int = _A, over: str = "udp", server: str = _GATEWAY, port: int = 53, **odd: int
) -> dict[str, Any]:
    """The answer's code and the addresses in it."""
    query = _question(name, kind, **odd)
    if over == "udp":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_SILENCE_S if server != _GATEWAY else _PATIENCE_S)
            sock.sendto(query, (server, port))
            answer = sock.recv(4096)
    else:
        with _connect((server, port)) as sock:
            sock.sendall(struct.pack("!H", len(query)) + query)
            answer = sock.recv(4096)[2:]
    _, flags, _, answers, _, _ = struct.unpack("!HHHHHH", answer[:12])
    return {"code": flags & 15, "count": answers, "address": socket.inet_ntoa(answer[-4:]) if answers else ""}


def _address() -> str:
    """Our own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((_GATEWAY, 53))
        return str(sock.getsockname()[0])


def _own(address: str, port: int) -> str:
    """What we serve at an address, we get there."""
    with (
        socket.create_server((address, port)) as listener,
        socket.create_connection((address, port), timeout=_PATIENCE_S) as near,
    ):
        far, _ = listener.accept()
        with far:
            far.sendall(b"mine")
            return near.recv(4).decode()


def _dribble(to: Sequence[Any], say: str, at_once: int = 1) -> str:
    """Byte after byte, until somebody has had enough."""
    data = bytes.fromhex(say)
    with _connect(to) as sock:
        sock.sendall(data[:at_once])
        sock.settimeout(_DRIBBLE_S)
        deadline = time.monotonic() + _PATIENCE_S
        sent = at_once
        while time.monotonic() < deadline:
            try:
                return sock.recv(65536).hex() or "failed: EOF"
            except TimeoutError:
                sock.sendall(data[sent : sent + 1] if sent < len(data) - 1 else b"")
                sent += 1
        return "still there"


def _serve(port: int, heard: str) -> None:
    """A neighbour's server: what comes by TCP or as a datagram is written down."""
    with (
        socket.create_server(("0.0.0.0", port)) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        Path(heard).open("ab", buffering=0) as book,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        datagrams.bind(("0.0.0.0", port))

        def listen() -> None:
            while True:
                book.write(datagrams.recv(65536) + b"\n")

        pool.submit(listen)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                data = connection.recv(65536)
                book.write(data + b"\n")
                connection.sendall(data)


def _wait_for_go() -> None:
    print("ready", flush=True)
    deadline = time.monotonic() + _PATIENCE_S
    while not Path(__file__).with_name("go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody said go")
        time.sleep(_PAUSE_S)


def _used(sock: socket.socket, data: bytes) -> str:
    """What a connection is worth now: an echo, or the status of an answer."""
    if not data.startswith(_REQUESTS):
        return _said(sock, data)
    sock.sendall(data)
    answer = http.client.HTTPResponse(sock)
    answer.begin()
    answer.read()
    return str(answer.status)


def _hold(open_first: list[list[Any]]) -> list[dict[str, Any]]:
    """Open connections, use those that have a first word, and all again when we are told to go on."""
    held = []
    for to, first, then, *source in open_first:
        sock = _connect(to, *source)
        held.append((sock, bytes.fromhex(then), _used(sock, bytes.fromhex(first)) if first else "", sock.getpeername()))
    _wait_for_go()
    told = []
    for sock, then, before, peer in held:
        with sock:
            try:
                after = _used(sock, then)
            except (OSError, http.client.HTTPException) as error:
                after = "failed: " + type(error).__name__
        told.append({"before": before, "after": after, "peer": peer})
    return told


def _crowd(to: Sequence[Any], size: int) -> dict[str, Any]:
    """How many of so many connections work at once, and whether one does again when they are gone."""
    to = (socket.gethostbyname(to[0]), to[1])  # asking each time would meet another limit first
    held: list[socket.socket] = []
    working = 0
    for _ in range(size):
        try:
            held.append(_connect(to))
            working += _said(held[-1], b"x") == b"x".hex()
        except OSError:
            pass
    _wait_for_go()
    for sock in held:
        sock.close()
    deadline = time.monotonic() + _PATIENCE_S
    while attempt("tcp", to=to) != b"hello".hex():
        if time.monotonic() > deadline:
            return {"working": working, "again": False}
        time.sleep(_PAUSE_S)
    return {"working": working, "again": True}


_ATTEMPTS: dict[str, Callable[..., Any]] = {
    "tcp": _tcp,
    "web": _web,
    "udp": _udp,
    "ping": _ping,
    "dns": _dns,
    "address": _address,
    "own": _own,
    "dribble": _dribble,
    "serve": _serve,
    "hold": _hold,
    "crowd": _crowd,
}


def main() -> None:
    attempts = json.loads(sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read())
    with concurrent.futures.ThreadPoolExecutor(len(attempts)) as pool:
        made = {name: pool.submit(attempt, **how) for name, how in attempts.items()}
        print(json.dumps({name: outcome.result() for name, outcome in made.items()}), flush=True)


if __name__ == "__main__":
    main()
