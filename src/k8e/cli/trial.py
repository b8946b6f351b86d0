"""The doctor's last word: a real sandbox on each runtime, started, asked, and removed."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from k8e.errors import K8eError
from k8e.model import Runtime, SandboxId, Template
from k8e.server import local_settings
from k8e.settings import ServerSettings
from k8e.setup import gvisor, node
from k8e.setup.bundle import build
from k8e.setup.checks import Check, Probe
from k8e.setup.packages import find
from k8e.setup.provision import Provisioned, bundles_dir, tools_dir
from k8e.substrate.local.machine import LocalMachine
from k8e.substrate.local.runtimes.built_in import RUNTIMES
from k8e.wire.aio import Credentials

__all__ = ["probes"]

PATIENCE_S = 90.0
"""The first sandbox of an image also prepares its environment."""


def probes(data_dir: Path) -> tuple[Probe, ...]:
    """One trial per runtime that could work here; nothing is installed."""
    return tuple(_probe(data_dir, runtime) for runtime in RUNTIMES)


def _probe(data_dir: Path, runtime: Runtime) -> Callable[[], Check]:
    def probe() -> Check:
        name = f"sandbox on {runtime}"
        if os.geteuid() != 0:
            return Check(name=name, ok=False, detail="cannot be tried without root", fix="run k8e doctor as root")
        try:
            return Check(name=name, ok=True, detail=_tried(data_dir, runtime))
        except (K8eError, OSError, TimeoutError) as error:
            return Check(name=name, ok=False, detail=str(error) or "no answer in time", fix="k8e doctor --fix")

    return probe


def _tried(data_dir: Path, runtime: Runtime) -> str:
    runc = find("runc")
    tools = tools_dir(data_dir)
    provisioned = Provisioned(
        bundle=build(bundles_dir(data_dir)),
        runsc=gvisor.recorded(tools),
        runc=Path(runc) if runc else None,
        node=node.installed(tools),
        notes={},
    )
    # A directory of its own: a server that runs beside us must not meet our sandbox, nor we its.
    with tempfile.TemporaryDirectory(prefix="trial-", dir=data_dir) as place:
        settings = local_settings(ServerSettings(data_dir=Path(place)), provisioned)
        return asyncio.run(_trial(LocalMachine(settings), runtime))


async def _trial(machine: LocalMachine, runtime: Runtime) -> str:
    known = (await machine.capabilities()).runtimes[runtime]
    if not known.available:
        raise OSError(known.detail)
    sandbox = SandboxId(f"trial-{secrets.token_hex(8)}")
    try:
        async with asyncio.timeout(PATIENCE_S):
            credentials = Credentials(secret=secrets.token_hex(16), epoch=1)
            await machine.create(sandbox, Template(runtime=runtime), credentials)
            link = await machine.dial(sandbox, credentials)
            await link.call("ready")
            await link.close()
    finally:
        await machine.destroy(sandbox)
    return f"started and answered ({known.detail})"
