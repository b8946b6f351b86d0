"""The relay of `sandbox-mcp`: lines of standard input to the server's MCP stream, its lines to standard output.

- Nothing but the server's lines, and lines in their place, is written.
- The end of the input lets everything that is under way finish; then the relay ends.
- When the server goes away, calls without an answer get one that says so. The next line, or the server's return, makes
  a new stream on which the conversation goes on; only a line that waits starts a server.
- Whoever reads the output and goes away ends it; so does a signal, which first lets go of what the client has made.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from k8e.cli.mcp_lines import LINE_BYTES, Lines, TooLong
from k8e.cli.mcp_record import Record, error_line, id_of_long
from k8e.client.errors import DeadlineExceeded, SandboxError, ServerFailed, Unreachable
from k8e.client.light.calls import Calls, Duplex, encoded

__all__ = ["Relay", "Ways"]

PIECE = 1 << 20
RETURN_S = 60.0
"""How long a line waits for a server that went away."""
PAUSES_S = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Between attempts to reach it again; the last one from then on."""
LEAVING_S = 2.0
"""How long the server may take to let go of everything when we are told to stop."""
INVALID_REQUEST = -32600
GONE: tuple[type[SandboxError], ...] = (Unreachable, ServerFailed, DeadlineExceeded)
"""Errors after which the same server, or its successor, may answer again."""
TOO_LONG = (
    f"the line is longer than {LINE_BYTES} bytes: write large content into a file in several calls, or fetch it from "
    "inside the sandbox"
)


class Ways(NamedTuple):
    """How to get to the server."""

    reach: Callable[[bool], Calls]
    """Whether to start it if it is ours to start → the way to it. Raises: SandboxError."""
    is_back: Callable[[], bool]
    """Whether trying to reach it makes sense without starting it."""


class Link(NamedTuple):
    """One stream to a server."""

    calls: Calls
    duplex: Duplex

    def send(self, line: bytes) -> None:
        self.duplex.send({"line": encoded(line)})


class Sink:
    """The output, which two threads write to, whole lines only."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def write(self, line: bytes) -> None:
        """Waits while nobody reads. Raises: BrokenPipeError."""
        with self._lock:
            left = memoryview(line + b"\n")
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:
                    select.select([], [self._descriptor], [])


class Relay:
    def __init__(self, ways: Ways, start: Mapping[str, str], *, source: int = 0, sink: int = 1) -> None:
        self._ways = ways
        self._start = start
        self._source = source
        self._sink_descriptor = sink
        self._sink = Sink(sink)
        self._lines = Lines()
        self._waiting: list[bytes] = []
        """Lines that no server has been given yet."""
        self._lock = threading.Lock()
        # Shared with the thread that listens, under the lock.
        self._record = Record()
        self._link: Link | None = None
        self._failure: SandboxError | None = None
        self._is_deaf = False
        # The main thread's own.
        self._listener: threading.Thread | None = None
        self._finished: Link | None = None
        """Which was told that nothing more will come."""
        self._is_finished = False
        self._is_reaching = False
        self._stopped: int | None = None
        self._attempts = 0
        self._next_try = 0.0
        self._wanted_since = 0.0
        self._woken, self._waker = os.pipe()

    def run(self) -> int:
        """Carry lines until the input has ended and everything is answered; the exit code. Raises: SandboxError."""
        self._dial(starts_server=True)
        try:
            self._carry()
        finally:
            self._leave()
        return self._stopped or 0

    def stop(self, code: int) -> None:
        """From a signal's handler: end soon, whatever the others do."""
        self._stopped = code
        if self._is_reaching:
            raise SystemExit(code)
        os.write(self._waker, b"s")
        later(2 * LEAVING_S, lambda: os._exit(code))
        if link := self._link:
            later(LEAVING_S, link.duplex.cancel)

    # The main thread: input, and the way to the server.

    def _carry(self) -> None:
        while not self._is_over():
            self._return()
            self._flush()
            ready = self._ready()
            if self._woken in ready:
                os.read(self._woken, 64)
            if self._source in ready:
                self._read()

    def _is_over(self) -> bool:
        with self._lock:
            if self._failure:
                raise self._failure
            is_done = self._is_finished and self._link is None and not self._waiting
            return self._is_deaf or self._stopped is not None or is_done

    def _ready(self) -> set[int]:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if not self._is_finished and not self._waiting:
            poll.register(self._source, select.POLLIN)
        poll.register(self._sink_descriptor, 0)  # only its end is of interest
        found = {descriptor for descriptor, _ in poll.poll(self._patience_ms())}
        if self._sink_descriptor in found:
            self._is_deaf = True
        return found

    def _patience_ms(self) -> int | None:
        if self._link is not None:
            return None
        return max(0, int((self._next_try - time.monotonic()) * 1000) + 1)

    def _read(self) -> None:
        try:
            data = os.read(self._source, PIECE)
        except BlockingIOError:
            return
        for line in self._lines.feed(data) if data else self._lines.finish():
            if isinstance(line, TooLong):
                self._sink.write(error_line(id_of_long(*line), INVALID_REQUEST, TOO_LONG))
            else:
                self._waiting.append(line)
        if not data:
            self._is_finished = True

    def _flush(self) -> None:
        """Give the server what waits for it; then, at the end of the input, say that this was all."""
        while self._waiting:
            with self._lock:
                if self._link is None:
                    return
                link, line = self._link, self._record.said(self._waiting.pop(0))
            if line is not None:
                self._send(link, line)
        if self._is_finished:
            self._finish(self._link)

    def _finish(self, link: Link | None) -> None:
        if link is not None and self._finished is not link:
            self._finished = link
            with contextlib.suppress(SandboxError):
                link.duplex.finish()

    def _send(self, link: Link, line: bytes) -> None:
        # Whoever listens notices that a link is gone, and answers what was sent on it.
        with contextlib.suppress(SandboxError):
            link.send(line)

    def _return(self) -> None:
        """Without a link: make one when it is time, or give up on what waits for it."""
        with self._lock:
            if self._link is not None or (self._is_finished and not self._waiting):
                return
            is_wanted = bool(self._waiting) or self._record.is_waiting
        now = time.monotonic()
        self._wanted_since = (self._wanted_since or now) if is_wanted else 0.0
        if now < self._next_try:
            return
        self._attempts += 1
        self._next_try = now + PAUSES_S[min(self._attempts, len(PAUSES_S) - 1)]
        if not is_wanted and not self._ways.is_back():
            return
        try:
            self._dial(starts_server=is_wanted)
        except GONE as error:
            if is_wanted and time.monotonic() - self._wanted_since > RETURN_S:
                self._give_up(str(error))

    def _dial(self, *, starts_server: bool) -> None:
        self._is_reaching = True
        try:
            calls = self._ways.reach(starts_server)
        finally:
            self._is_reaching = False
        try:
            link = Link(calls, calls.duplex("ServeMcp"))
            with contextlib.suppress(SandboxError):  # whoever listens hears why
                link.duplex.send({"start": dict(self._start)})
            with self._lock:
                self._link = link
                again = self._record.again()
        except BaseException:
            calls.close()
            raise
        self._listener = threading.Thread(target=self._listen, args=(link,), name="answers", daemon=True)
        self._listener.start()
        for line in again:
            self._send(link, line)

    def _give_up(self, why: str) -> None:
        with self._lock:
            for line in self._waiting:
                self._record.said(line)
            told = self._record.lost(f"The k8e server cannot be reached: {why}", for_good=True)
        self._waiting.clear()
        self._wanted_since = 0.0
        for line in told:
            self._sink.write(line)

    def _leave(self) -> None:
        """Let the listener finish; where calls still run, tell the server that nobody waits for them."""
        with self._lock:
            link, self._is_finished = self._link, True
            cancelled = self._record.cancellations()
        if link is not None:
            later(LEAVING_S, link.duplex.cancel)
            for line in [] if self._is_deaf else cancelled:
                self._send(link, line)
            self._finish(link)
        if self._listener is not None and not self._is_deaf:
            self._listener.join()

    # The listening thread, one for each link.

    def _listen(self, link: Link) -> None:
        error: SandboxError | None = None
        try:
            for answer in link.duplex.answers():
                self._attempts = 0
                with self._lock:
                    line = self._record.heard(answer.data("line"))
                if line is not None:
                    self._sink.write(line)
        except SandboxError as refused:
            error = refused
        except OSError:
            self._is_deaf = True
        finally:
            self._lose(link, error)

    def _lose(self, link: Link, error: SandboxError | None) -> None:
        is_fatal = error is not None and not isinstance(error, GONE)
        with self._lock:
            self._link = None
            if is_fatal:
                self._failure, told = error, self._record.lost(str(error), for_good=True)
            else:
                told = self._record.lost(for_good=self._is_finished)
        link.calls.close()
        with contextlib.suppress(OSError):
            for line in [] if self._is_deaf else told:
                self._sink.write(line)
        os.write(self._waker, b"w")


def later(seconds: float, what: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, what)
    timer.daemon = True
    timer.start()
