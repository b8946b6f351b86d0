"""PID 1 of a sandbox: listen, serve the gateway that owns it and those that follow, reap."""

from __future__ import annotations

import os
import signal
import sys
import time

from k8e.wire.frames import ProtocolError

from . import command, libc, limits, memory, runners
from .desk import Desk
from .files import Files
from .link import Link
from .listener import SecretListener
from .loop import READ, Loop
from .machine import Machine
from .parking import Parking
from .ports import Ports
from .runners import Runners
from .service import Service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Union

    from .tls import TlsListener

__all__ = ["main"]

_VERSION = 2
_RUNNERS_AFTER_S = 0.003
_INTERPRETERS_AFTER_S = 1.0
_GREETING_S = 10.0
_MAX_UNGREETED = 8
"""Connections whose dialer has not said yet who it is; past it the oldest goes."""
_MAX_FOLLOWERS = 16
_MAX_EPOCH = 1 << 62
_UMASK = 0o022


class Agent:
    """Accepts whoever knows the secret: one owner, the one with the highest epoch so far, and some followers.

    Of equal epochs the newest wins: it is the same owner, whose earlier connection may be dead without a word.
    """

    def __init__(self, loop: Loop, service: Service, listener: Union[SecretListener, TlsListener]) -> None:
        self._loop = loop
        self._service = service
        self._listener = listener
        self._boot = os.urandom(16).hex()
        self._epoch = 0
        self._owner: Optional[Link] = None
        self._links: Dict[Link, float] = {}
        """Each with the time by which its dialer must have said who it is."""
        self._is_sweeping = False
        loop.watch(listener.fileno(), READ, self._accept)

    def _accept(self, events: int) -> None:
        try:
            sock = self._listener.accept()
        except OSError:
            return
        link = Link(self._loop, sock, self._service.open, self._greet, self._closed)
        self._links[link] = time.monotonic() + _GREETING_S
        ungreeted = self._ungreeted()
        if len(ungreeted) > _MAX_UNGREETED:
            ungreeted[0].close()
        if not self._is_sweeping:
            self._close_silent()

    def _closed(self, link: Link) -> None:
        self._links.pop(link, None)

    def _ungreeted(self) -> List[Link]:
        return [link for link in self._links if not link.is_accepted]

    def _close_silent(self) -> None:
        """Hang up on those that have not said in time who they are, and look again while there are others.

        One timer serves all: a timer of a connection's own would keep it in memory after its end.
        """
        now = time.monotonic()
        for link in self._ungreeted():
            if self._links[link] <= now:
                link.close()
        self._is_sweeping = bool(self._ungreeted())
        if self._is_sweeping:
            self._loop.later(1.0, self._close_silent)

    def _greet(self, link: Link, hello: Dict[str, Any]) -> None:
        epoch, role = hello.get("epoch"), hello.get("role")
        if not self._listener.knows(hello):
            link.refuse({"refused": "secret"})
        elif role not in ("owner", "follower") or not isinstance(epoch, int) or not 0 <= epoch <= _MAX_EPOCH:
            link.refuse({"refused": "invalid"})
        elif role == "follower":
            self._greet_follower(link)
        elif epoch < self._epoch:
            link.refuse({"refused": "epoch", "epoch": self._epoch})
        else:
            former, self._owner, self._epoch = self._owner, link, epoch
            if former is not None:
                former.close()
            link.accept(self._hello(), is_follower=False)

    def _greet_follower(self, link: Link) -> None:
        if sum(each.is_follower for each in self._links) >= _MAX_FOLLOWERS:
            link.refuse({"refused": "full"})
        else:
            link.accept(self._hello(), is_follower=True)

    def _hello(self) -> Dict[str, Any]:
        return {"version": _VERSION, "boot": self._boot, "pid": os.getpid(), "epoch": self._epoch}


def _settle() -> None:
    limits.join()
    runners.settle()


def serve(listener: Union[SecretListener, TlsListener]) -> None:
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
    listener.listen()
    agent = Agent(loop, service, listener)
    # A sandbox made for somebody who waits must answer first: the first command needs a runner, the rest can come later.
    loop.later(_RUNNERS_AFTER_S, pool.refill)
    loop.later(_INTERPRETERS_AFTER_S, parking.refill)
    loop.run()
    del agent


def main(argv: Optional[List[str]] = None) -> None:
    """`--socket PATH`, or `--tcp HOST:PORT --authority FILE --dialer NAME --sandbox NAME`."""
    arguments = sys.argv[1:] if argv is None else argv
    boot_error = ""
    command.IMAGE_ENV.update(command.image_env(os.environ))
    try:
        if len(arguments) == 2 and arguments[0] == "--socket":
            boot_error = os.path.join(os.path.dirname(arguments[1]), "boot-error")
            serve(SecretListener(arguments[1]))
        elif len(arguments) == 8 and arguments[::2] == ["--tcp", "--authority", "--dialer", "--sandbox"]:
            from .tls import TlsListener

            serve(TlsListener(*arguments[1::2]))
        else:
            sys.exit("usage: agent --socket PATH | --tcp HOST:PORT --authority FILE --dialer NAME --sandbox NAME")
    except (OSError, ProtocolError) as error:
        if boot_error:
            _report(boot_error, "agent: %s\n" % error)
        raise


def _report(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError:
        pass


if __name__ == "__main__":
    main()
