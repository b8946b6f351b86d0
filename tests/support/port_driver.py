"""A runtime driver as one for virtual machines will be: no overlay on the host, no bundle, and no socket shared with the inside.

Its sandbox has a root file system of its own, filled from the image's layers. Its agent makes its socket there, and is reached
through a port that the sandbox's monitor has outside (`port_monitor`). In place of a virtual machine there are namespaces,
which are no border: only tests can make this driver, by an argument of `LocalMachine` that no setting names.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from k8e.errors import SandboxFailed
from k8e.model import Availability, Claim, Death, Runtime, SandboxId
from k8e.substrate.local.host import mount
from k8e.substrate.local.host.process import Process, identify, is_alive
from k8e.substrate.local.layout import SandboxPaths
from k8e.substrate.local.runtimes.driver import Blueprint, Driver, LocalSandbox
from k8e.wire.aio import Credentials, Link

__all__ = ["PortDriver"]

_MONITOR = Path(__file__).with_name("port_monitor.py")
_START_S = 60.0
_RETRY_S = 0.002


class PortDriver(Driver):
    runtime = Runtime.KATA
    missing = ""

    def __init__(self, ports: Path) -> None:
        """`ports` is a directory for the sockets, outside any sandbox's own: their paths must be short."""
        self._ports = ports
        self._ports.mkdir(exist_ok=True, mode=0o700)

    def probe(self) -> Availability:
        return Availability(available=True, detail="no isolation; for tests")

    def port(self, sandbox: SandboxId) -> Path:
        return self._ports / f"{sandbox}.sock"

    def build(self, sandbox: LocalSandbox, blueprint: Blueprint) -> Process:
        root = sandbox.paths.root
        try:
            sandbox.group.create()
            sandbox.group.limit_memory(sandbox.memory_bytes)
            for name in ("root", "opt", "shared"):
                (root / name).mkdir()
            mount.bind(root / "shared", root / "shared")
            mount.make_shared(root / "shared")
            (root / "boot").write_text("\n".join(_boot(root, blueprint)))
            places = (_MONITOR, root, self.port(sandbox.id), *sandbox.group.procs_files())
            with sandbox.paths.log.open("wb") as log:
                started = subprocess.run(
                    [sys.executable, *map(str, places)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd="/",
                    timeout=_START_S,
                )
            return identify(int(started.stdout))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SandboxFailed("start monitor", error) from error

    async def listening(self, sandbox: LocalSandbox, init: Process) -> None:
        while not (sandbox.paths.root / "listens").exists():
            if not is_alive(init):
                raise SandboxFailed("boot agent", self.last_words(sandbox.paths) or "it ended before it listened")
            await asyncio.sleep(_RETRY_S)

    async def dial(self, sandbox: LocalSandbox, credentials: Credentials, *, timeout_s: float) -> Link:
        return await Link.dial(self.port(sandbox.id), credentials, timeout_s=timeout_s)

    def limit(self, sandbox: LocalSandbox, claim: Claim) -> None:
        sandbox.group.limit_cpus(claim.cpus)

    def mount_workspace(self, sandbox: LocalSandbox, source: Path) -> None:
        target = sandbox.paths.root / "shared" / "workspace"
        target.mkdir(exist_ok=True)
        mount.bind(source, target)

    async def enter_workspace(self, sandbox: LocalSandbox, link: Link) -> None:
        await link.call("bind", {"source": "/.k8e-mnt/workspace", "target": "/workspace"})

    def cause_of_death(self, sandbox: LocalSandbox) -> Death:
        return Death(detail="its monitor ended")

    def last_words(self, paths: SandboxPaths) -> str:
        return paths.log.read_text().strip() if paths.log.exists() else ""

    def written(self, sandbox: LocalSandbox) -> Path:
        return sandbox.paths.root

    def leftovers(self) -> frozenset[SandboxId]:
        return frozenset(SandboxId(path.stem) for path in self._ports.glob("*.sock"))

    def remove(self, sandbox: SandboxId) -> None:
        self.port(sandbox).unlink(missing_ok=True)


def _boot(root: Path, blueprint: Blueprint) -> Iterator[str]:
    """A script that makes the sandbox's root file system and becomes its PID 1."""
    yield from ("set -e", "umask 022", f"cd {shlex.quote(str(root))}/root", "mount -t tmpfs -o mode=755 sandbox .")
    yield f"cd {shlex.quote(str(root))}/root"
    for layer in reversed(blueprint.image.layers):
        yield f"cp -a {shlex.quote(str(layer))}/. ."
    binds = [(bind.source, bind.target) for bind in blueprint.image.binds]
    binds += [(root / "shared", "/.k8e-mnt"), (Path("/dev"), "/dev"), (Path("/sys"), "/sys")]
    if blueprint.agent.bundle is not None:
        binds.append((blueprint.agent.bundle, "/.k8e"))
    else:
        binds.append((root / "opt", "/opt"))  # what is written there is read when it has ended
    for source, target in binds:
        yield f"mount --rbind {shlex.quote(str(source))} .{shlex.quote(target)}"
    yield from ("mount --make-rslave ./.k8e-mnt", "mount -t proc proc proc", "mkdir .host", "chmod 1777 tmp")
    if blueprint.secret:
        yield f"echo {shlex.quote(blueprint.secret)} >.k8e-run/secret"
    # The host's mounts go: a copy of another test's disk in this namespace would keep that disk busy.
    yield from ("pivot_root . .host", "cd /", "umount -l .host", "rmdir .host")
    env = [shlex.quote(f"{key}={value}") for key, value in blueprint.agent.env.items()]
    yield shlex.join(["exec", "env", "-i"]) + " " + " ".join([*env, shlex.join(blueprint.agent.argv)])
