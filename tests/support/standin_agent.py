"""A minimal agent for testing the substrate alone: says hello and answers unary calls, one connection at a time.

Its one op that a real agent does not have is `sh`: run a shell command and return what it printed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, "/.k8e/agent.pyz")

from k8e.wire.frames import Decoder
from k8e.wire.items import Opened
from k8e.wire.mux import Mux

__all__ = ["main"]

_MS_BIND_REC = 0x5000
_LIMIT = 1 << 20


def _sh(args):  # type: ignore[no-untyped-def]
    done = subprocess.run(["/bin/sh", "-c", args["text"]], capture_output=True, stdin=subprocess.DEVNULL)
    return {"code": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}


def _start(args):  # type: ignore[no-untyped-def]
    env = dict(os.environ)
    env.pop("PYTHONHOME", None)
    child = subprocess.Popen(["/bin/sh", "-c", args["text"]], stdin=subprocess.DEVNULL, env=env)
    return {"pid": child.pid}


def _bind(args):  # type: ignore[no-untyped-def]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(args["source"].encode(), args["target"].encode(), None, _MS_BIND_REC, None):
        raise OSError(ctypes.get_errno(), "bind")
    return {}


def _largest() -> int:
    sizes = {}
    for path in Path("/proc").glob("[0-9]*/statm"):
        with contextlib.suppress(OSError):
            sizes[int(path.parent.name)] = int(path.read_text().split()[1])
    sizes.pop(1, None)
    return max(sizes, key=sizes.get) if sizes else 0  # type: ignore[arg-type]


def _oom(args):  # type: ignore[no-untyped-def]
    pid = _largest()
    if pid:
        os.kill(pid, signal.SIGKILL)
    return {"pid": pid}


_OPS = {"sh": _sh, "start": _start, "bind": _bind, "oom": _oom, "configure": lambda args: {}, "ready": lambda args: {}}


def _serve(peer) -> None:  # type: ignore[no-untyped-def]
    mux, decoder = Mux(is_dialer=False), Decoder()
    mux.hello({"version": 1, "boot": "stand-in", "pid": os.getpid()})
    while True:
        for chunk in iter(lambda: mux.output(_LIMIT), []):
            for part in chunk:
                peer.sendall(part)
        data = peer.recv(65536)
        if not data:
            return
        for number, item in mux.receive(decoder.feed(data)):
            if isinstance(item, Opened):
                try:
                    mux.end(number, _OPS[item.op](item.args))  # type: ignore[no-untyped-call]
                except (OSError, KeyError) as error:
                    mux.fail(number, "io", repr(error))


def main() -> None:
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("/.k8e-run/agent.sock")
    listener.listen(16)
    while True:
        peer, _ = listener.accept()
        with contextlib.suppress(OSError):
            _serve(peer)
        peer.close()


if __name__ == "__main__":
    main()
