"""This machine's server, started again after it has died under a client: by the command that starts one for people."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from k8e.client.light.places import has_died
from k8e.locks import is_shown

__all__ = ["Reviver"]


class Reviver:
    """Starts the server of one socket; only one that died, and that this user may start."""

    def __init__(self, socket: str) -> None:
        self._data_dir = Path(socket).parent.parent
        self._starting: subprocess.Popen[bytes] | None = None

    def revive(self) -> None:
        """Begin to start it, unless it runs, was stopped, or is another user's. Does not wait for it."""
        if self._starting is not None and self._starting.poll() is None:
            return
        if not has_died(self._data_dir) or is_shown(self._data_dir / "server" / "lock"):
            return
        if not sys.executable or getattr(sys, "frozen", False):
            return  # there is no interpreter that has us
        try:
            self._starting = subprocess.Popen(
                [sys.executable, "-I", "-m", "k8e", "server", "start", "--data-dir", str(self._data_dir)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            return
        # So that it leaves no zombie in a program that never asks for it.
        threading.Thread(target=self._starting.wait, name="k8e server start", daemon=True).start()
