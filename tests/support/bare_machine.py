"""Sandboxes without isolation, for tests of everything that does not depend on it: the real agent as a plain process.

Each has user, mount, PID and network namespaces of its own, so that parallel tests do not meet and nothing outlives its
init; inside it is the host's `/usr` with a `/workspace` of its own. None of that is a border against hostile code, so no
test of an attack may run here. Only tests can make this substrate: it is not part of the package, and no setting names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from k8e.engine.substrate import Capabilities
from k8e.errors import Conflict, HostUnsupported, SandboxFailed
from k8e.model import (
    Availability,
    Capacity,
    Claim,
    Death,
    Decision,
    EgressPolicy,
    Grant,
    ImageProgress,
    OwnerId,
    Runtime,
    SandboxId,
    Template,
    Usage,
    WorkspaceId,
)
from k8e.setup.bundle import SOCKET, Bundle, build
from k8e.setup.provision import bundles_dir
from k8e.substrate.local.host import capacity
from k8e.substrate.local.host.process import Process, identify, is_alive, kill, wait_death
from k8e.wire.aio import Credentials, Link, LinkLost, RemoteError
from tests.support.places import RUN_DIR_VARIABLE, TOOLS_DIR

__all__ = ["BareMachine", "why_not"]

_BOOT_S = 60.0
_DIAL_S = 10.0
_RETRY_S = 0.002
_RUNTIMES = (Runtime.GVISOR, Runtime.CONTAINER)
"""What callers of the real substrate ask for; here both are the same."""
_HERE = Availability(available=True, detail="no isolation; for tests")
_NO_IMAGES = Availability(available=False, detail="there is only the host's own image")
_NOWHERE = Availability(available=False, detail="is not available on this host")

_WORKSPACES_AT = "/.k8e-workspaces"

# As init of the namespaces: a root of its own on a tmpfs, with the host's programs in it, then the agent.
_BOOT = """
set -e
root=$1/root
mount -t tmpfs -o mode=755 sandbox "$root"
cd "$root"
mkdir proc dev sys tmp root home run var usr etc workspace opt .k8e .k8e-run .k8e-workspaces .host
chmod 1777 tmp
for place in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$place" ]; then cp -P "/$place" .; elif [ -d "/$place" ]; then mkdir "$place"; mount --rbind "/$place" "$place"; fi
done
for place in usr etc dev sys; do mount --rbind "/$place" "$place"; done
mount -t proc proc proc
mount --bind "$1/run" .k8e-run
mount --rbind "$2" .k8e
mount --rbind "$3" .k8e-workspaces
mount --bind "$3/$4" workspace
if [ "$5" ]; then mkdir -p ".$5"; mount --rbind "$5" ".$5"; fi
hostname sandbox
ip link set lo up 2>/dev/null || true
shift 5
# The host's mounts go: a copy of another test's disk in this namespace would keep that disk busy.
pivot_root . .host
cd /
umount -l .host
rmdir .host
exec "$@"
"""

_CERTIFICATE = "-----BEGIN CERTIFICATE-----\nbm90aGluZyBpcyByZWFjaGVk\n-----END CERTIFICATE-----\n"
"""Of an authority that signs nothing: nothing here is brokered, because nothing is reached."""

_NAMESPACES = ("--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--uts")


@functools.cache
def why_not() -> str:
    """Why there can be no such sandbox on this host; empty if there can."""
    tried = subprocess.run(["unshare", *_NAMESPACES, "--fork", "--mount-proc", "true"], capture_output=True, text=True)
    return f"user namespaces are off here: {tried.stderr.strip()}" if tried.returncode else ""


@functools.cache
def _bundle() -> Bundle:
    """The one that set-up has built; another one where it may not be written."""
    shared = bundles_dir(TOOLS_DIR)
    if not os.access(shared, os.W_OK):
        shared = Path(os.environ.get(RUN_DIR_VARIABLE, "/tmp")) / f"bundles-{os.geteuid()}"
        shared.mkdir(exist_ok=True, mode=0o755)
    return build(shared)


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Every process that was started here and not reaped yet, whichever substrate it was for."""


@dataclass(slots=True)
class BareMachine:
    """Implements `k8e.substrate.machine.Machine`. Everything lies in one directory, for any number of these."""

    directory: Path
    shown: Path | None = None
    """A directory of the test's that is inside under the same path, so that both sides can leave files for each other."""
    policies: dict[SandboxId, EgressPolicy] = field(default_factory=dict)
    """What each may reach, as it was last told."""
    grants: dict[SandboxId, tuple[Grant, ...]] = field(default_factory=dict)
    asked: asyncio.Queue[Decision] = field(default_factory=asyncio.Queue)
    """Nothing here reaches a network; what a test puts here counts as asked of one and decided."""

    def __post_init__(self) -> None:
        if reason := why_not():
            pytest.skip(reason)
        for path in (self._sandboxes, self._workspaces):
            path.mkdir(parents=True, exist_ok=True)

    @property
    def _sandboxes(self) -> Path:
        return self.directory / "bare"

    @property
    def _workspaces(self) -> Path:
        return self.directory / "workspaces"

    @property
    def owners_dir(self) -> Path:
        return self.directory / "owners"

    # What there is

    async def capabilities(self) -> Capabilities:
        runtimes = {runtime: _HERE if runtime in _RUNTIMES else _NOWHERE for runtime in Runtime}
        return Capabilities(runtimes=runtimes, images=_NO_IMAGES)

    def capacity(self) -> Capacity:
        return capacity.read(self.directory)

    async def tend(self) -> None:
        await asyncio.Event().wait()

    async def prepare(self, template: Template, owner: OwnerId, heard: Callable[[ImageProgress], None]) -> Template:
        if template.runtime not in _RUNTIMES:
            raise HostUnsupported(f"runtime {template.runtime} is not available on this host: it is bare")
        heard(ImageProgress(phase="ready", image=template.image))
        return template

    # Life and death

    async def create(self, sandbox: SandboxId, template: Template, credentials: Credentials) -> None:
        place = self._sandboxes / sandbox
        for path in (place, place / "root", place / "run", self._workspaces / sandbox):
            path.mkdir()
        (place / "run" / "secret").write_text(credentials.secret)
        bundle = _bundle()
        places = [place, bundle.path, self._workspaces, sandbox, self.shown or ""]
        steps = ["sh", "-c", _BOOT, "sh", *map(str, places), *bundle.argv]
        with (place / "log").open("wb") as log:
            # Whatever ends this process ends the sandbox too, so that a run that is killed leaves none.
            child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES, "--fork", "--kill-child", *steps],
                env={"PATH": os.defpath + ":/usr/sbin:/sbin", **bundle.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                # Where `pivot_root` takes it along: a process elsewhere keeps the host's mounts, all of them locked
                # together in a user namespace, for as long as it lives, and with them another test's disk.
                cwd="/",
            )
        # Reaped as soon as it ends, also while no event loop runs: else it would look like a child that nobody waits for.
        threading.Thread(target=child.wait, name=f"bare {sandbox}", daemon=True).start()
        _children[child.pid] = child
        init = identify(child.pid)
        (place / "init").write_text(f"{init.pid} {init.start_ticks}")
        try:
            async with asyncio.timeout(_BOOT_S):
                await self._listens(sandbox)
        except BaseException:
            await self.destroy(sandbox)
            raise

    async def _listens(self, sandbox: SandboxId) -> None:
        place = self._sandboxes / sandbox
        while not (place / "run" / Path(SOCKET).name).exists():
            if not self.alive(sandbox):
                raise SandboxFailed("boot", (place / "log").read_text())
            await asyncio.sleep(_RETRY_S)

    async def dial(self, sandbox: SandboxId, credentials: Credentials) -> Link:
        try:
            async with asyncio.timeout(_DIAL_S):
                with _short(self._sandboxes / sandbox / "run") as place:
                    return await self._dial(sandbox, f"{place}/{Path(SOCKET).name}", credentials)
        except (OSError, TimeoutError) as error:
            raise SandboxFailed("dial agent", error) from error

    async def _dial(self, sandbox: SandboxId, path: str, credentials: Credentials) -> Link:
        while True:
            try:
                return await Link.dial(path, credentials, timeout_s=_DIAL_S)
            except (ConnectionRefusedError, BlockingIOError):
                if not self.alive(sandbox):
                    raise
                await asyncio.sleep(_RETRY_S)

    async def configure(self, sandbox: SandboxId, claim: Claim, link: Link) -> None:
        self.policies[sandbox] = claim.egress
        try:
            await link.call("configure", {"processes": claim.processes})
            if claim.workspace is not None:
                source = f"{_WORKSPACES_AT}/{claim.workspace}"
                await link.call("bind", {"source": source, "target": "/workspace"})
                (self._sandboxes / sandbox / "workspace").write_text(claim.workspace)
        except (OSError, TimeoutError, LinkLost, RemoteError) as error:
            raise SandboxFailed("configure", error) from error

    async def death(self, sandbox: SandboxId) -> Death:
        init = self._init(sandbox)
        if init is None:
            return Death(detail="it does not exist")
        await wait_death(init)
        _reap(init)
        return Death(detail="its init process ended")

    def alive(self, sandbox: SandboxId) -> bool:
        init = self._init(sandbox)
        return init is not None and is_alive(init)

    def kill(self, sandbox: SandboxId) -> None:
        """As if the host had killed it: nobody is told, and everything else of it stays."""
        os.kill(self._inner_init(sandbox), signal.SIGKILL)  # everything in its namespace dies with it

    def root(self, sandbox: SandboxId) -> Path:
        """Its root directory, for tests that look inside."""
        return Path(f"/proc/{self._inner_init(sandbox)}/root")

    def _inner_init(self, sandbox: SandboxId) -> int:
        init = self._init(sandbox)
        assert init is not None
        return _family(init.pid)[1]

    async def destroy(self, sandbox: SandboxId) -> None:
        if (init := self._init(sandbox)) is not None:
            kill(init)
            await wait_death(init)
            _reap(init)
        self.policies.pop(sandbox, None)
        self.grants.pop(sandbox, None)
        for path in (self._sandboxes / sandbox, self._workspaces / sandbox):
            shutil.rmtree(path, ignore_errors=True)

    def mark_warm(self, sandbox: SandboxId, template: Template) -> None:
        (self._sandboxes / sandbox / "warm").write_text(json.dumps(dataclasses.asdict(template)))

    def mark_used(self, sandbox: SandboxId) -> None:
        (self._sandboxes / sandbox / "warm").unlink(missing_ok=True)

    async def warm(self) -> Mapping[SandboxId, Template]:
        found = {path.parent.name: json.loads(path.read_text()) for path in self._sandboxes.glob("*/warm")}
        return {
            SandboxId(name): Template(**{**fields, "runtime": Runtime(fields["runtime"])})
            for name, fields in found.items()
        }

    async def survivors(self) -> frozenset[SandboxId]:
        return frozenset(SandboxId(path.name) for path in self._sandboxes.iterdir())

    async def out_of_memory(self, sandbox: SandboxId) -> None:
        await asyncio.Event().wait()

    async def relieved(self, sandbox: SandboxId) -> None:
        return

    async def usage(self, sandboxes: Collection[SandboxId]) -> Mapping[SandboxId, Usage]:
        return {sandbox: _usage(self._init(sandbox)) for sandbox in sandboxes}

    # Network

    async def set_egress(self, sandbox: SandboxId, policy: EgressPolicy) -> None:
        self.policies[sandbox] = policy

    async def set_grants(self, sandbox: SandboxId, grants: tuple[Grant, ...]) -> str:
        self.grants[sandbox] = grants
        return _CERTIFICATE if grants else ""

    async def decisions(self) -> AsyncIterator[Decision]:
        while True:
            yield await self.asked.get()
            self.asked.task_done()  # whoever was given it has come for the next one

    async def settle_decisions(self) -> None:
        await self.asked.join()

    # Workspaces

    async def create_workspace(self, workspace: WorkspaceId, disk_bytes: int) -> None:
        (self._workspaces / workspace).mkdir(exist_ok=True)

    async def delete_workspace(self, workspace: WorkspaceId) -> None:
        used = {path.read_text() for path in self._sandboxes.glob("*/workspace")}
        if workspace in used:
            raise Conflict(f"workspace {workspace} is in use")
        shutil.rmtree(self._workspaces / workspace, ignore_errors=True)

    async def share_workspace(self, parent: SandboxId) -> WorkspaceId:
        with contextlib.suppress(FileNotFoundError):
            return WorkspaceId((self._sandboxes / parent / "workspace").read_text())
        return WorkspaceId(parent)

    def _init(self, sandbox: SandboxId) -> Process | None:
        try:
            pid, start_ticks = (self._sandboxes / sandbox / "init").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return Process(int(pid), int(start_ticks))


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """Another path to it: a socket's address holds 107 bytes, and tests' directories have long names."""
    descriptor = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _reap(process: Process) -> None:
    child = _children.pop(process.pid, None)
    if child is not None:
        child.wait()


def _usage(init: Process | None) -> Usage:
    """Of the sandbox's init and all that it has started."""
    pids = _family(init.pid) if init is not None and is_alive(init) else []
    ticks, pages = 0, 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # its own, and what its children had used when they ended
            pages += int(fields[21])
    cpu_s = ticks / os.sysconf("SC_CLK_TCK")
    return Usage(cpu_s=cpu_s, memory_bytes=pages * os.sysconf("SC_PAGESIZE"), processes=len(pids))


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(member for child in children for member in _family(int(child)))]
