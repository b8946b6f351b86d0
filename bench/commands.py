"""Commands and Python programs in a live session."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.alternatives import bare_python
from bench.lab import NO_POOL, RUNTIMES, Lab
from bench.rows import Row, extra, ratio
from bench.series import interleaved, timed
from k8e.client import Chunk, SandboxClient
from k8e.model import Runtime

__all__ = ["commands", "programs"]

_EXEC = {Runtime.GVISOR: 0.8, Runtime.CONTAINER: 0.25}
_RESULT = {Runtime.GVISOR: 1.0, Runtime.CONTAINER: 0.5}
_FIRST = {Runtime.GVISOR: 0.7, Runtime.CONTAINER: 0.3}

_PAUSE_S = 0.15
"""Between two measurements, so that neither pays for the interpreter that is being parked after the one before."""


def commands(lab: Lab) -> Iterator[Row]:
    """`true`, beside the bare runtime's exec."""
    with lab.deployment.serving(*NO_POOL) as server:
        for runtime in RUNTIMES:
            bare = lab.bare[runtime]
            with lab.session(server, runtime) as session_id, bare.commands() as command:
                ours = timed(lambda sid=session_id: server.client.exec(sid, ["true"]))  # type: ignore[misc]
                seen = interleaved({"ours": ours, "theirs": command}, n=lab.n)
            beside = f"{bare.name} exec"
            yield ratio(f"exec true, {runtime}", seen["ours"], seen["theirs"], beside=beside, bound=_EXEC[runtime])


def programs(lab: Lab) -> Iterator[Row]:
    """`print(1)`, beside a bare interpreter on the host."""
    with lab.deployment.serving(*NO_POOL) as server:
        for runtime in RUNTIMES:
            with lab.session(server, runtime) as session_id:
                yield from _programs(lab, server.client, runtime, session_id)


def _programs(lab: Lab, client: SandboxClient, runtime: Runtime, session_id: str) -> Iterator[Row]:
    def result() -> object:
        return client.run("print(1)", "python", session_id=session_id)

    seen = interleaved(
        {"result": timed(result), "first": lambda: _first_output(client, session_id), "bare": bare_python()},
        n=lab.n,
        pause_s=_PAUSE_S,
    )
    beside = 'bare python3 -c "print(1)"'
    yield ratio(f"run python, {runtime}", seen["result"], seen["bare"], beside=beside, bound=_RESULT[runtime])
    yield ratio(f"first output of python, {runtime}", seen["first"], seen["bare"], beside=beside, bound=_FIRST[runtime])
    crowded = interleaved({"result": timed(result)}, n=lab.n)
    yield extra(f"run python without a pause, {runtime}", crowded["result"], note="interpreters are parked meanwhile")


def _first_output(client: SandboxClient, session_id: str) -> float:
    began = time.perf_counter()
    took = 0.0
    for item in client.run_output("print(1)", "python", session_id=session_id):
        if isinstance(item, Chunk) and not took:
            took = (time.perf_counter() - began) * 1000
    return took
