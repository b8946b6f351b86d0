"""The operations on the sandbox as a whole: limits, mounts, processes, and the choice of whom to kill for memory."""

from __future__ import annotations

import os
import signal
import socket

from . import fields, limits, procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set

    from .desk import Desk
    from .execs import Exec
    from .link import Link
    from .parking import Parking
    from .runners import Runners
    from .service import Service

__all__ = ["Machine"]

_LINE_BYTES = 4096
_LINES_BYTES = 128 * 1024
"""Of all command lines together: JSON may need six times as much, and one message has to hold it."""


class Machine:
    """What there is besides commands and files."""

    def __init__(self, runners: Runners, parking: Parking, desk: Desk) -> None:
        self._runners = runners
        self._parking = parking
        self._desk = desk

    def register(self, service: Service) -> None:
        """Offer the operations."""
        service.add_call("configure", self._configure)
        service.add_call("bind", self._bind)
        service.add_call("processes", self._processes)
        service.add_call("oom", self._oom)
        service.add_stream("ready", self._ready)

    def _configure(self, args: Dict[str, Any]) -> None:
        limits.set_processes(fields.integer(args, "processes"))
        hostname = fields.optional_text(args, "hostname")
        if hostname:
            socket.sethostname(hostname)

    def _bind(self, args: Dict[str, Any]) -> None:
        from . import libc

        libc.bind_mount(fields.text(args, "source"), fields.text(args, "target"))

    def _ready(self, link: Link, number: int, args: Dict[str, Any]) -> None:
        self._runners.refill()
        self._parking.refill()
        self._parking.when_ready(lambda: link.end(number, {}))

    def _user_processes(self) -> List[int]:
        ours: Set[int] = {os.getpid(), *self._runners.pids, *self._parking.pids, *self._desk.witness_pids}
        return [pid for pid in procs.all_pids() if pid not in ours]

    def _processes(self, args: Dict[str, Any]) -> Dict[str, Any]:
        found = []
        pids = self._user_processes()
        most = min(_LINE_BYTES, _LINES_BYTES // max(len(pids), 1))
        for pid in pids:
            stat = procs.stat_of(pid)
            if stat is not None:
                line = procs.command_line(pid, most)
                found.append({"pid": pid, "comm": stat[0], "state": stat[1], "args": line})
        return {"processes": found}

    def _oom(self, args: Dict[str, Any]) -> Dict[str, Any]:
        victims = self._user_processes()
        if not victims:
            raise fields.Refusal("not_found", "there is no process to kill")
        victim = max(victims, key=procs.resident_bytes)
        subject = self._exec_of(victim)
        if subject is not None:
            subject.mark("oom_killed")
        procs.send(victim, signal.SIGKILL)
        return {"pid": victim, "exec": subject.id if subject is not None else None}

    def _exec_of(self, pid: int) -> Optional[Exec]:
        by_runner = self._desk.by_runner()
        while pid > 1:
            pid = procs.parent_of(pid)
            if pid in by_runner:
                return by_runner[pid]
        return None
