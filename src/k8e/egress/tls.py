"""TLS over a plain non-blocking socket, also when its first bytes have been read already."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

__all__ = ["TlsStream"]

_PIECE = 128 * 1024


class TlsStream:
    """One reader and one writer may use it at once. It does not own the socket."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        name: str | None = None,
        first: bytes = b"",
    ) -> None:
        self._sock = sock
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_side, server_hostname=name)
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self.bytes_in = len(first)
        self.bytes_out = 0
        self._in.write(first)
        sock.setblocking(False)

    async def handshake(self) -> None:
        """Raises: ssl.SSLError with the reason, OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    await self._flush()  # the alert that tells the other side why
                raise
            else:
                await self._flush()
                return

    async def has_more(self, timeout_s: float) -> bool:
        """Whether something comes within that time; it is left to be read."""
        if self._in.pending or self._tls.pending():
            return True
        comes = asyncio.Event()
        self._loop.add_reader(self._sock, comes.set)
        try:
            async with asyncio.timeout(timeout_s):
                await comes.wait()
        except TimeoutError:
            return False
        finally:
            self._loop.remove_reader(self._sock)
        return True

    async def read(self) -> bytes:
        """What has come; nothing at the end. Raises: OSError."""
        while True:
            try:
                return self._tls.read(_PIECE)
            except ssl.SSLWantReadError:
                # A writer that is at it takes along whatever reading made necessary to say.
                if self._out.pending and not self._sending.locked():
                    await self._flush()
                await self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def write(self, data: bytes) -> None:
        """Returns when the kernel has it all, so a slow reader slows the writer. Raises: OSError."""
        view = memoryview(data)
        async with self._sending:
            for start in range(0, len(view), _PIECE):
                self._tls.write(view[start : start + _PIECE])
                await self._send_pending()

    async def finish(self) -> None:
        """Say that no more comes, as far as the other side still listens."""
        with contextlib.suppress(OSError):
            async with self._sending:
                with contextlib.suppress(ssl.SSLWantReadError):
                    self._tls.unwrap()
                await self._send_pending()
            self._sock.shutdown(socket.SHUT_WR)

    async def hear_out(self, limit: int) -> None:
        """After `finish`: throw away what still comes. A close with unread bytes would be a reset, which destroys what
        the other side has not read yet."""
        left = limit
        with contextlib.suppress(OSError):
            while left > 0 and (data := await self._loop.sock_recv(self._sock, _PIECE)):
                left -= len(data)

    async def _fill(self) -> None:
        data = await self._loop.sock_recv(self._sock, _PIECE)
        self.bytes_in += len(data)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    async def _flush(self) -> None:
        async with self._sending:
            await self._send_pending()

    async def _send_pending(self) -> None:
        while self._out.pending:
            data = self._out.read()
            self.bytes_out += len(data)
            await self._loop.sock_sendall(self._sock, data)
