"""What a monitor of virtual machines is to its driver: the process outside whose death is the sandbox's, and a port to its agent.

`python port_monitor.py DIRECTORY PORT GROUP...` moves itself into the control groups whose files it is told, starts the
sandbox by the script `boot` in DIRECTORY, and carries bytes between whoever dials PORT, a unix socket outside the sandbox, and
the socket that the agent has made in a file system of its own inside. It prints its process number when PORT can be dialled.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

__all__ = ["main"]

_NAMESPACES = ("--mount", "--propagation", "slave", "--pid", "--net", "--ipc", "--uts")
_AGENT_SOCKET = ".k8e-run/agent.sock"
_PIECE = 64 * 1024
_RETRY_S = 0.002


def main(directory: Path, port: str, groups: list[str]) -> None:
    for group in groups:
        Path(group).write_text("0")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(port)
    listener.listen()
    if monitor := os.fork():
        print(monitor, flush=True)
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    guest = subprocess.Popen(
        # Whatever ends the monitor ends the sandbox, as it would a virtual machine.
        ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES, "--fork", "--kill-child", "sh", directory / "boot"],
        stdin=subprocess.DEVNULL,
    )
    threading.Thread(target=_serve, args=(listener, guest, directory / "listens"), daemon=True).start()
    guest.wait()
    os._exit(0)


def _serve(listener: socket.socket, guest: subprocess.Popen[bytes], sign: Path) -> None:
    """Everybody who dials has a connection of their own to the agent."""
    inside = _place_inside(guest.pid)
    sign.touch()
    while True:
        dialler, _ = listener.accept()
        agent = socket.socket(socket.AF_UNIX)
        try:
            agent.connect(str(inside))
        except OSError:
            dialler.close()
            agent.close()
            continue
        for source, target in ((dialler, agent), (agent, dialler)):
            threading.Thread(target=_carry, args=(source, target), daemon=True).start()


def _place_inside(guest: int) -> Path:
    """The agent's socket as it is seen from here, once it is there; what waits in vain ends with the sandbox."""
    while True:
        with contextlib.suppress(OSError):
            init = Path(f"/proc/{guest}/task/{guest}/children").read_text().split()
            for place in (Path(f"/proc/{number}/root") / _AGENT_SOCKET for number in init):
                if place.exists():
                    return place
        time.sleep(_RETRY_S)


def _carry(source: socket.socket, target: socket.socket) -> None:
    """Until one side hangs up; then both."""
    with contextlib.suppress(OSError):
        while data := source.recv(_PIECE):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
