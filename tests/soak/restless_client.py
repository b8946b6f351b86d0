"""A client that makes sessions, uses them and checks each answer, until it is killed: `python -m tests.soak.restless_client`.

It outlives the server: when nobody answers it looks for the next one. A wrong answer ends it with a traceback.
"""

from __future__ import annotations

import os
import random
import time

from k8e.client import NotFound, SandboxClient, Unreachable
from k8e.client.discovery import discover

__all__ = ["live"]

_PAUSE_S = 0.1
_PATIENCE_S = 120


def live(source: random.Random) -> None:
    """One connection's life; ends when the server does."""
    with SandboxClient(target=discover()) as client:
        while True:
            sid = client.create_session(runtime_class=source.choice(["container", "gvisor"]))
            for _ in range(source.randrange(1, 6)):
                _use(client, sid, source)
            # Some sessions are left to whoever clears up.
            if source.random() < 0.8:
                client.destroy_session(sid)


def _use(client: SandboxClient, sid: str, source: random.Random) -> None:
    lines = source.randrange(1, 20_000)
    answer = client.exec(sid, f"seq {lines} | tail -1; exit {lines % 200}", timeout=_PATIENCE_S)
    assert (answer.stdout, answer.exit_code) == (f"{lines}\n", lines % 200), answer
    data = source.randbytes(source.randrange(200_000))
    client.write_file(sid, "/workspace/file", data)
    assert client.read_bytes(sid, "/workspace/file") == data


def _main() -> None:
    source = random.Random(os.getpid())
    while True:
        try:
            live(source)
        except (Unreachable, NotFound, OSError):
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    _main()
