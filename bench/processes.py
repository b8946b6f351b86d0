"""The command line as whole processes: what one `k8e sandbox run true` costs a person or a script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.alternatives import python_path
from bench.lab import NO_POOL, Lab
from bench.rows import Row, ratio
from bench.series import Probe, interleaved, timed
from bench.server import ServerUnderTest
from k8e.model import Runtime

__all__ = ["processes"]

_SOCKET = 6.0
_TLS = 12.0
_PAUSE_S = 0.15
"""Between two measurements, so that neither pays for what the server prepares after the one before."""
_COMMAND = Path(sys.executable).parent / "k8e"


def processes(lab: Lab) -> Iterator[Row]:
    """Beside an interpreter that does nothing, and beside the bare runtimes' own exec."""
    with (
        lab.deployment.serving(*NO_POOL) as server,
        lab.session(server, Runtime.CONTAINER) as session_id,
        lab.bare[Runtime.GVISOR].commands() as runsc,
        lab.bare[Runtime.CONTAINER].commands() as runc,
    ):
        probes = {
            "socket": _run(lab, server, session_id),
            "tls": _run(lab, server, session_id, through_tls=True),
            "python": _bare_python(),
            "runsc": runsc,
            "runc": runc,
        }
        seen = interleaved(probes, n=lab.n, pause_s=_PAUSE_S)
    beside = "bare python3 -c pass"
    yield ratio("k8e sandbox run true, socket", seen["socket"], seen["python"], beside=beside, bound=_SOCKET)
    yield ratio("k8e sandbox run true, gRPC/TLS", seen["tls"], seen["python"], beside=beside, bound=_TLS)
    for name in ("runsc", "runc"):
        yield ratio("k8e sandbox run true, socket", seen["socket"], seen[name], beside=f"{name} exec", bound=None)


def _run(lab: Lab, server: ServerUnderTest, session_id: str, *, through_tls: bool = False) -> Probe:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("K8E_")}
    home = str(lab.deployment.data_dir)
    environ = {**kept, "K8E_DATA_DIR": home, "HOME": home}
    if through_tls:
        environ["K8E_SANDBOX_ENDPOINT"] = server.target().endpoint
    argv = [str(_COMMAND), "sandbox", "run", "--session-id", session_id, "true"]
    return timed(lambda: subprocess.run(argv, env=environ, check=True, capture_output=True))


def _bare_python() -> Probe:
    argv = [python_path(), "-c", "pass"]
    return timed(lambda: subprocess.run(argv, check=True, capture_output=True))
