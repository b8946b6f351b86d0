"""A server's engine that kills itself at its n-th change to the world: `python -m tests.support.crashing …`.

Every call by which CPython changes the file system or starts a process passes an audit hook; mounts and commits are
counted where they are made. So each step of a scenario can be cut short without the product knowing of tests.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from k8e.egress.client import EgressClient
from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.engine.store.sqlite import Database
from k8e.model import Command, Runtime, SessionSpec, Shell
from k8e.setup.provision import Provisioned, ensure
from k8e.setup.report import Stderr
from k8e.substrate.local.host import mount
from tests.support.cells import OWNER
from tests.support.engines import machine_for
from tests.support.places import TOOLS_DIR
from tests.support.substrates import over

__all__ = ["SCENARIOS", "Fuse", "only"]

_CHANGES = frozenset({"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "subprocess.Popen", "os.symlink"})
_READY_TIMEOUT_S = 60.0
SCENARIOS = ("create", "claim", "destroy", "refill")


class Fuse:
    """Burns down by one at every change while it is lit; at zero the process is gone."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.is_lit = False
        self.burnt = 0

    def burn(self) -> None:
        if not self.is_lit:
            return
        self.burnt += 1
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def lay(self) -> None:
        """Put the fuse where the product changes the world."""
        sys.addaudithook(lambda event, _args: self.burn() if event in _CHANGES else None)
        mount._check = _counted(mount._check, self)  # every mount passes here
        Database.transact = _counted(Database.transact, self)  # type: ignore[method-assign]  # every commit too


def _counted(work: Callable[..., Any], fuse: Fuse) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        fuse.burn()
        return work(*args, **kwargs)

    return counted


def only(runtime: Runtime, host: Provisioned) -> Provisioned:
    """A host that has no other runtime: a start need not try it then."""
    return replace(host, runsc=None) if runtime is Runtime.CONTAINER else replace(host, runc=None)


async def _play(data_dir: Path, scenario: str, runtime: Runtime, fuse: Fuse) -> None:
    host = only(runtime, ensure(TOOLS_DIR, Stderr(), env=os.environ))
    ready = 1 if scenario in ("claim", "refill") else 0
    template = SessionSpec(runtime=runtime).template()
    settings = EngineSettings(data_dir=data_dir, default=template)
    async with (
        EgressClient.open(data_dir) as network,
        Engine.open(settings, over(machine_for(data_dir, host, network), min=ready, max=16)) as engine,
    ):
        spec = SessionSpec(runtime=runtime, tenant="kept" if scenario == "claim" else "")
        if scenario == "refill":
            fuse.is_lit = True
            await _until_ready(engine)
            return
        if scenario == "claim":
            await _until_ready(engine)
        if scenario == "destroy":
            view = await engine.create_session(OWNER, spec)
            await engine.exec(OWNER, view.session_id, Command(what=Shell("echo leaves a transcript")))
            fuse.is_lit = True
            await engine.destroy_session(OWNER, view.session_id)
        else:
            fuse.is_lit = True
            await engine.create_session(OWNER, spec)
        fuse.is_lit = False
        await engine.destroy_all()


async def _until_ready(engine: Engine) -> None:
    async with asyncio.timeout(_READY_TIMEOUT_S):
        while not any(shelf.ready for shelf in engine.status().pool.values()):
            await asyncio.sleep(0.005)


def _main() -> None:
    data_dir, scenario, runtime, length = sys.argv[1:]
    fuse = Fuse(int(length))
    fuse.lay()
    asyncio.run(_play(Path(data_dir), scenario, Runtime(runtime), fuse))
    sys.stdout.write(f"{fuse.burnt}\n")


if __name__ == "__main__":
    _main()
