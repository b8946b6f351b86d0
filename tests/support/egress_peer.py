"""The two ends of a measured connection, as programs of their own: `serve`, `world`, `download`, `hoard`, `ping`, `crowd`, `knock`.

The protocol: eight bytes say how many the server shall send; 0 asks it to echo whatever follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import time

import dns.message
import dns.rdatatype

__all__ = ["GATEWAY", "lookup"]

GATEWAY = "100.64.0.1"
_PIECE = bytes(1 << 20)
_kept: list[socket.socket] = []


def lookup(name: str, kind: str = "A", *, timeout_s: float = 30.0) -> dns.message.Message:
    """Ask the resolver, from wherever this thread is."""
    query = dns.message.make_query(name, kind)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(timeout_s)
        sock.sendto(query.to_wire(), (GATEWAY, 53))
        return dns.message.from_wire(sock.recv(4096))


def address_of(name: str) -> str:
    if name[0].isdigit():
        return name
    return str(lookup(name).answer[0][0])


def _serve(port: int) -> None:
    """One process and one thread, however many connections: the kernel shall give it one share of a processor."""
    asyncio.run(_listen(port))


async def _listen(port: int) -> None:
    server = await asyncio.start_server(_attend, "0.0.0.0", port, backlog=4096)
    print("ready", flush=True)
    await server.serve_forever()


async def _attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    try:
        wanted = int.from_bytes(await reader.readexactly(8), "big")
        if not wanted:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            return
        sock = writer.get_extra_info("socket").dup()
        with sock:
            while wanted:
                piece = _PIECE[: min(wanted, len(_PIECE))]
                await loop.sock_sendall(sock, piece)
                wanted -= len(piece)
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def _world() -> None:
    """A few servers of an ordinary internet: an echo, a web server, and one that speaks first."""
    for port in (7, 443, 8443):
        await asyncio.start_server(_echo, "203.0.113.2", port)
        await asyncio.start_server(_echo, "10.77.0.2", port)
    await asyncio.start_server(_web, "203.0.113.2", 80)
    await asyncio.start_server(_banner, "203.0.113.3", 443)
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


async def _web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(head), head))
    writer.close()


async def _banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 welcome\r\n")
    await _echo(reader, writer)


def _open(address: str, port: int, wanted: int) -> socket.socket:
    sock = socket.create_connection((address, port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(wanted.to_bytes(8, "big"))
    return sock


def _download(address: str, port: int, wanted: int) -> float:
    """Megabytes per second."""
    began = time.perf_counter()
    left = wanted
    buffer = bytearray(1 << 20)
    with _open(address, port, wanted) as sock:
        while left and (got := sock.recv_into(buffer)):
            left -= got
    if left:
        raise ConnectionError(f"{left} of {wanted} bytes are missing")
    return wanted / (time.perf_counter() - began) / 1e6


def _ping(address: str, port: int, times: int) -> list[float]:
    """Milliseconds from connect to the first byte back."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        with _open(address, port, 0) as sock:
            sock.sendall(b"x")
            sock.recv(1)
            took.append((time.perf_counter() - began) * 1000)
    return took


async def _hoard(address: str, port: int, streams: int) -> None:
    """Bulk downloads without end."""

    async def one() -> None:
        while True:
            reader, writer = await asyncio.open_connection(address, port)
            writer.write((1 << 40).to_bytes(8, "big"))
            while await reader.read(1 << 20):
                pass

    async with asyncio.TaskGroup() as tasks:
        for number in range(streams):
            tasks.create_task(one(), name=str(number))
        print("ready", flush=True)


def _knock(address: str, port: int, times: int) -> dict[str, int]:
    """Connections as fast as they can be begun, all kept open."""
    failed = 0
    for number in range(times):
        sock = socket.socket()
        sock.setblocking(False)
        try:
            sock.connect((address, port))
        except BlockingIOError:
            pass
        except OSError:
            failed += 1
        _kept.append(sock)
        if number == 0:
            print("ready", flush=True)
    return {"begun": len(_kept), "failed": failed}


def _crowd(address: str, port: int, size: int) -> dict[str, int]:
    """Connections that are all open at once, and each of which works."""
    socks = [_open(address, port, 0) for _ in range(size)]
    for number, sock in enumerate(socks):
        sock.sendall(number.to_bytes(4, "big"))
    right = sum(sock.recv(4, socket.MSG_WAITALL) == number.to_bytes(4, "big") for number, sock in enumerate(socks))
    return {"open": len(socks), "right": right}


def main() -> None:
    what, *rest = sys.argv[1:]
    if what in {"serve", "world"}:
        asyncio.run(_world()) if what == "world" else _serve(int(rest[0]))
        return
    address, port, amount = address_of(rest[0]), int(rest[1]), int(rest[2])
    if what == "hoard":
        asyncio.run(_hoard(address, port, amount))
        return
    work = {"download": _download, "ping": _ping, "crowd": _crowd, "knock": _knock}[what]
    print(json.dumps(work(address, port, amount)), flush=True)
    if what == "knock":
        sys.stdin.read()


if __name__ == "__main__":
    main()
