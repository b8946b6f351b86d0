"""PID 1 of a sandbox: listen, serve the newest engine, reap."""

from __future__ import annotations

import os
import signal
import socket
import sys

from k8e.wire.frames import ProtocolError

from . import command, libc, limits, memory, runners
from .desk import Desk
from .files import Files
from .link import Link
from .loop import READ, Loop
from .machine import Machine
from .parking import Parking
from .ports import Ports
from .runners import Runners
from .service import Service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

__all__ = ["main"]

_VERSION = 1
_RUNNERS_AFTER_S = 0.003
_INTERPRETERS_AFTER_S = 1.0
_BACKLOG = 8
_UMASK = 0o022


class Agent:
    """Accepts engines; there is one at a time and the newest wins."""

    def __init__(self, loop: Loop, service: Service, listener: socket.socket) -> None:
        self._loop = loop
        self._service = service
        self._listener = listener
        self._boot = os.urandom(16).hex()
        self._link: Optional[Link] = None
        loop.watch(listener.fileno(), READ, self._accept)

    def _accept(self, events: int) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if self._link is not None:
            self._link.close()
        self._link = Link(self._loop, sock, self._service.open, self._closed)
        self._link.mux.hello({"version": _VERSION, "boot": self._boot, "pid": os.getpid()})
        self._link.flush()

    def _closed(self, link: Link) -> None:
        if self._link is link:
            self._link = None


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.bind(path)
    listener.listen(_BACKLOG)
    return listener


def _settle() -> None:
    limits.join()
    runners.settle()


def serve(path: str) -> None:
    """Never returns."""
    os.umask(_UMASK)
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    limits.prepare()
    memory.prepare()
    # SAFETY: commands are root inside and would else trace, and so freeze, PID 1 and the runners, which inherit this;
    # what they start does not, because exec undoes it. Commands never hold CAP_SYS_PTRACE.
    libc.make_undumpable()
    libc.take_short_turns()
    loop, service = Loop(), Service()
    pool = Runners(loop, _settle)
    parking = Parking(loop, pool)
    desk = Desk(loop, pool, parking)
    desk.register(service)
    Machine(pool, parking, desk).register(service)
    Files(loop).register(service)
    Ports(loop).register(service)
    loop.on_child(pool.reap)
    agent = Agent(loop, service, _listen(path))
    # A sandbox made for somebody who waits must answer first: the first command needs a runner, the rest can come later.
    loop.later(_RUNNERS_AFTER_S, pool.refill)
    loop.later(_INTERPRETERS_AFTER_S, parking.refill)
    loop.run()
    del agent


def main(argv: Optional[List[str]] = None) -> None:
    """`--socket PATH`."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 2 or arguments[0] != "--socket":
        sys.exit("usage: agent --socket PATH")
    command.IMAGE_ENV.update(command.image_env(os.environ))
    try:
        serve(arguments[1])
    except (OSError, ProtocolError) as error:
        _report(os.path.join(os.path.dirname(arguments[1]), "boot-error"), "agent: %s\n" % error)
        raise


def _report(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError:
        pass


if __name__ == "__main__":
    main()
