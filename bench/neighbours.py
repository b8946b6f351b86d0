"""A session's commands while the one beside it does its worst."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from bench.lab import NO_POOL, RUNTIMES, Lab
from bench.rows import Row, extra, ratio
from bench.series import Series, interleaved, timed
from bench.server import ServerUnderTest
from k8e.client import SandboxError
from k8e.model import Runtime

__all__ = ["neighbours"]

_MOST = 3.0
_SETTLE_S = 1.0
_PATIENCE_S = 30.0

_ATTACKS = {
    "fork bomb": "exec python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'",
    "memory hog": "while :; do python3 -c 'kept = []\nwhile True: kept.append(bytearray(1 << 22))'; done",
    "disk filler": "while :; do dd if=/dev/zero of=/workspace/big bs=1M; rm -f /workspace/big; done 2>/dev/null",
    "CPU hog": "for n in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait",
    "flood of output": "yes",
}
"""Each goes on until it is killed."""


def neighbours(lab: Lab) -> Iterator[Row]:
    for runtime in RUNTIMES:
        with lab.deployment.serving(*NO_POOL) as server, lab.session(server, runtime) as neighbour:
            for name, attack in _ATTACKS.items():
                yield from _beside(lab, server, runtime, neighbour, name, attack)


def _beside(
    lab: Lab, server: ServerUnderTest, runtime: Runtime, neighbour: str, name: str, attack: str
) -> Iterator[Row]:
    client = server.client
    probe = timed(lambda: client.exec(neighbour, ["true"]))
    attacker = client.create_session(runtime)
    try:
        server.settle()
        quiet = interleaved({"exec": probe}, n=lab.n)["exec"]
        run_id = _begin(server, attacker, attack)
        loud = interleaved({"exec": probe}, n=lab.n)["exec"]
        if (status := client.poll_run(run_id).status) != "running":
            raise AssertionError(f"the {name} was over before the measurement was: {status}")
    finally:
        ended = Series.of([timed(lambda: _destroy(server, attacker))()])
    yield ratio(f"neighbour of a {name}, {runtime}", loud, quiet, beside="a quiet neighbour", bound=_MOST)
    yield extra(f"destroying a {name}, {runtime}", ended)


def _begin(server: ServerUnderTest, attacker: str, attack: str) -> str:
    run_id = server.client.start_run(attacker, f"echo begun; {attack}")
    deadline = time.monotonic() + _PATIENCE_S
    while not server.client.poll_run(run_id).stdout:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the attack does not begin: {attack}")
    time.sleep(_SETTLE_S)
    return run_id


def _destroy(server: ServerUnderTest, session_id: str) -> None:
    with contextlib.suppress(SandboxError):
        server.client.destroy_session(session_id)
