"""DNS for sandboxes: allowed names get an address that only stands for them, all others do not exist.

Nothing is ever asked of another resolver here, so a question cannot carry anything out. Types other than A have no
answer: no addresses of the real world, no hints, no keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

__all__ = ["LONGEST", "Ask", "TooSlow", "answer", "serve_datagrams", "serve_stream"]

Ask = Callable[[str], str | None]
"""The address that stands for a name as it was asked for; None if there is none for this sandbox."""

LONGEST = 1232
"""Bytes of a question; one name fits four times."""
_TTL_S = 60
_HEADER = struct.Struct("!HHHHHH")
_QR, _RD = 0x8000, 0x0100
_BATCH = 32
_STREAM_QUESTIONS = 100
_STREAM_IDLE_S = 10.0


class TooSlow(Exception):
    """The other end did not finish in time what it had begun."""


def answer(query: bytes, ask: Ask) -> bytes:
    """The answer to a message; empty when it deserves none."""
    if len(query) < _HEADER.size or len(query) > LONGEST:
        return b""
    number, flags, *_ = _HEADER.unpack_from(query)
    if flags & _QR:
        return b""  # an answer; answering it could go on for ever
    try:
        question = dns.message.from_wire(query)
        return _answer(question, ask)
    except (dns.exception.DNSException, ValueError):
        return _HEADER.pack(number, _QR | (flags & _RD) | dns.rcode.FORMERR, 0, 0, 0, 0)


def _answer(query: dns.message.Message, ask: Ask) -> bytes:
    reply = dns.message.make_response(query, recursion_available=True, our_payload=LONGEST)
    reply.set_rcode(_fill(reply, query, ask))
    return reply.to_wire(max_size=512)


def _fill(reply: dns.message.Message, query: dns.message.Message, ask: Ask) -> dns.rcode.Rcode:
    if query.opcode() != dns.opcode.QUERY:
        return dns.rcode.NOTIMP
    if len(query.question) != 1:
        return dns.rcode.FORMERR
    asked = query.question[0]
    if asked.rdclass != dns.rdataclass.IN:
        return dns.rcode.REFUSED
    address = ask(asked.name.to_text(omit_final_dot=True))
    if address is None:
        return dns.rcode.NXDOMAIN
    if asked.rdtype == dns.rdatatype.A:
        reply.answer.append(dns.rrset.from_text(asked.name, _TTL_S, dns.rdataclass.IN, dns.rdatatype.A, address))
    return dns.rcode.NOERROR


def serve_datagrams(sock: socket.socket, asker: Callable[[str], Ask | None]) -> None:
    """Answer what has arrived at a non-blocking UDP socket, a batch of it. `asker` says who is at an address."""
    for _ in range(_BATCH):
        try:
            query, peer = sock.recvfrom(LONGEST + 1)
        except OSError:
            return
        ask = asker(peer[0])
        if ask is not None and (reply := answer(query, ask)):
            with contextlib.suppress(OSError):
                sock.sendto(reply, peer)


async def serve_stream(sock: socket.socket, ask: Ask) -> None:
    """Answer one TCP connection's questions until it ends, stalls or has had enough. Raises: OSError, TooSlow."""
    loop = asyncio.get_running_loop()
    for _ in range(_STREAM_QUESTIONS):
        try:
            async with asyncio.timeout(_STREAM_IDLE_S):
                query = await _framed(sock)
                reply = answer(query, ask)
                if not reply:
                    return
                await loop.sock_sendall(sock, len(reply).to_bytes(2, "big") + reply)
        except TimeoutError as error:
            raise TooSlow("a DNS connection was silent") from error


async def _framed(sock: socket.socket) -> bytes:
    """One message; empty at the end or when it is longer than any question."""
    size = int.from_bytes(await _exactly(sock, 2), "big")
    return await _exactly(sock, size) if size <= LONGEST else b""


async def _exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        more = await loop.sock_recv(sock, size - len(data))
        if not more:
            return b""
        data += more
    return data
