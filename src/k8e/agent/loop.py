"""One epoll loop: descriptors, timers and child deaths, each with a callback that cannot take the loop down."""

from __future__ import annotations

import heapq
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Tuple

    Callback = Callable[[int], None]

__all__ = ["ERROR", "READ", "WRITE", "Loop", "Timer"]

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
ERROR = select.EPOLLERR | select.EPOLLHUP


class Timer:
    """A call that will be made later unless cancelled."""

    __slots__ = ("action", "is_cancelled")

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not call any more."""
        self.is_cancelled = True


class Loop:
    """Owns the epoll descriptor, the timers and the wake-up pipe for SIGCHLD."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: Dict[int, Callback] = {}
        self._masks: Dict[int, int] = {}
        self._timers: List[Tuple[float, int, Timer]] = []
        self._count = 0

    def on_child(self, action: Callable[[], None]) -> None:
        """Call `action` soon after any child changed state."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def wake(events: int) -> None:
            os.read(reader, 4096)
            action()

        self.watch(reader, READ, wake)

    def watch(self, fd: int, mask: int, callback: Callback) -> None:
        """Start, or change, what is awaited on a descriptor. An empty mask still reports errors."""
        old = self._masks.get(fd)
        self._callbacks[fd] = callback
        if old == mask:
            return
        self._masks[fd] = mask
        if old is None:
            self._epoll.register(fd, mask)
        else:
            self._epoll.modify(fd, mask)

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor; call it before closing."""
        if self._callbacks.pop(fd, None) is not None:
            del self._masks[fd]
            try:
                self._epoll.unregister(fd)
            except OSError:
                pass

    def later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Call `action` once, after `delay_s`."""
        timer = Timer(action)
        self._count += 1
        heapq.heappush(self._timers, (time.monotonic() + delay_s, self._count, timer))
        return timer

    def run(self) -> None:
        """For ever."""
        while True:
            for fd, events in self._epoll.poll(self._pause_s()):
                callback = self._callbacks.get(fd)
                if callback is not None:
                    _guarded(callback, events)
            self._run_timers()

    def _pause_s(self) -> float:
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else -1

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.is_cancelled:
                _guarded(lambda events, action=timer.action: action(), 0)  # type: ignore[misc]  # bound on purpose


def _guarded(callback: Callback, events: int) -> None:
    try:
        callback(events)
    except Exception:  # noqa: BLE001  # PID 1 must not die of one bad callback: the sandbox would die with it
        sys.excepthook(*sys.exc_info())
