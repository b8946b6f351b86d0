"""Starting an OCI runtime so that what it starts owes nothing to us.

The launcher is a shell that first leaves the server's cgroups in every hierarchy, then waits for a line, then becomes
the runtime. Moving the first process between groups waits for an RCU grace period (some 13 ms), which
passes while the disk is being made. The sandbox inherits the runtime's stdio, so that is /dev/null: a pipe would keep
its reader waiting, and a file could be filled or opened again from inside. Runtimes write their errors to a log beside.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, cast

from k8e.errors import SandboxFailed
from k8e.substrate.local.host import inotify
from k8e.substrate.local.host.process import Process, identify
from k8e.substrate.local.layout import SandboxPaths

__all__ = ["Launcher", "tail"]

_SCRIPT = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 1; shift; done; shift; read -r go && exec "$@" </dev/null >/dev/null 2>&1'
_START_TIMEOUT_S = 30.0
_TAIL_BYTES = 2048


class Launcher:
    """One runtime process between its birth and the sandbox's."""

    def __init__(self, process: subprocess.Popen[bytes], paths: SandboxPaths) -> None:
        self._process = process
        self._paths = paths
        self._is_left = False

    @classmethod
    def start(
        cls, argv: Sequence[str], paths: SandboxPaths, *, groups: Sequence[Path], entering: Sequence[str] = ()
    ) -> Launcher:
        """For the runtime's command `argv`; blocking, returns once the shell runs.

        The shell writes itself into each file of `groups`. `entering` are words that run it elsewhere, such as nsenter's.
        """
        with paths.log.open("wb") as log:
            process = subprocess.Popen(
                [*entering, "/bin/sh", "-c", _SCRIPT, "k8e-launch", *map(str, groups), "--", *argv],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        return cls(process, paths)

    def go(self, boot_markers: tuple[Path, ...] = ()) -> Process:
        """Let it run the runtime and wait for the sandbox's init; blocking. Raises: SandboxFailed.

        The init may do its work while the runtime still cleans up behind itself: one of `boot_markers`, which
        the init makes, is as good as the runtime's end.
        """
        with inotify.watching(self._paths.root, *{marker.parent for marker in boot_markers}) as changes:
            self._say_go()
            ended = self._ends_before(lambda: any(marker.exists() for marker in boot_markers) and self._init(), changes)
        if ended and self._process.wait() != 0:
            raise SandboxFailed("start runtime", tail(self._paths.log) or f"exit {self._process.returncode}")
        init = self._init()
        if init is None:
            raise SandboxFailed("start runtime", tail(self._paths.log) or "it left no process")
        if not ended:
            self._leave()
        return init

    def _ends_before(self, is_up: Callable[[], object], changes: int) -> bool:
        """Whether the runtime ended before `is_up` held; looks again at every change."""
        # Popen.wait(timeout) polls with pauses of up to 50 ms; a pidfd tells at once.
        pidfd = os.pidfd_open(self._process.pid)
        waiter = select.poll()
        waiter.register(pidfd, select.POLLIN)
        waiter.register(changes, select.POLLIN)
        deadline = time.monotonic() + _START_TIMEOUT_S
        try:
            while not is_up():
                ready = [descriptor for descriptor, _ in waiter.poll((deadline - time.monotonic()) * 1000)]
                if pidfd in ready:
                    return True
                if not ready:
                    raise SandboxFailed("start runtime", f"no answer within {_START_TIMEOUT_S:.0f} s")
                inotify.drain(changes)
            return False
        finally:
            os.close(pidfd)

    def _init(self) -> Process | None:
        try:
            return identify(int(self._paths.pid_file.read_text(encoding="ascii")))
        except (OSError, ValueError):
            return None

    def _leave(self) -> None:
        """Let it end by itself; destroying the sandbox ends it in any case."""
        self._is_left = True
        threading.Thread(target=self._process.wait, name="k8e-runtime-end", daemon=True).start()

    def _say_go(self) -> None:
        words = cast("IO[bytes]", self._process.stdin)
        try:
            words.write(b"\n")
            words.close()
        except BrokenPipeError:
            return  # it has failed already; its exit status and log say why

    def abandon(self) -> None:
        """End it if it still runs and nobody else waits for its end."""
        if self._is_left:
            return
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def tail(path: Path) -> str:
    """The last thing a runtime's JSON log says, or the last line of anything else."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((_message(line) for line in reversed(lines) if line.strip()), "")


def _message(line: str) -> str:
    try:
        return str(json.loads(line)["msg"])
    except (ValueError, KeyError, TypeError):
        return line.strip()
