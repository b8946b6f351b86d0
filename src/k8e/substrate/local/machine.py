"""Single sandboxes by this machine's kernel.

Blocking work runs in threads of our own, boots apart from removals, so a burst of one never queues behind the other.
Nothing is remembered that a restart would lose: each method starts from the record on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from k8e import full_disk
from k8e.engine.substrate import Capabilities
from k8e.errors import DiskFull, HostUnsupported, K8eError, SandboxFailed
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
from k8e.substrate.local import boot, control, record, unfinished, venv
from k8e.substrate.local.blocks import Blocks
from k8e.substrate.local.boot import Blueprint, Builder
from k8e.substrate.local.disk_space import HostDiskSpace
from k8e.substrate.local.disks import Disks
from k8e.substrate.local.host import capacity, cgroup, kernel, loop, mount, oom, usage
from k8e.substrate.local.host.process import Process, is_alive, wait_death
from k8e.substrate.local.idmaps import IdMaps
from k8e.substrate.local.images.pulls import Pulls
from k8e.substrate.local.images.shared_work import Heard, OwnerTurns, SharedWork
from k8e.substrate.local.images.store import HOST, ImageStore, digest_in
from k8e.substrate.local.layout import Layout
from k8e.substrate.local.network import Network, NoNetwork
from k8e.substrate.local.plan import LIVE_AT, Agent, Bind, Image, MemoryPlan, memory_plan
from k8e.substrate.local.record import Record
from k8e.substrate.local.runtimes import unavailable
from k8e.substrate.local.runtimes.container import Container
from k8e.substrate.local.runtimes.gvisor import Gvisor
from k8e.substrate.local.runtimes.oci import OciRuntime, tail
from k8e.substrate.local.settings import LocalSettings
from k8e.substrate.local.threads import Threads
from k8e.substrate.local.turns import Turns
from k8e.substrate.local.workspaces import Workspaces, shared_name
from k8e.wire.aio import Credentials, DialRefused, Link, LinkLost, ProtocolError, RemoteError

__all__ = ["LocalMachine", "LocalSettings"]

_log = logging.getLogger(__name__)

_BOOT_THREADS = 8
_REMOVAL_THREADS = 8
_IMAGE_THREADS = 4
_BOOT_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 60.0
_DIAL_TIMEOUT_S = 10.0
_DIAL_RETRY_S = 0.002
_DIAL_RETRY_MAX_S = 0.1
"""An agent that was rewritten may stop listening for good; trying every few milliseconds is for one that starts."""
_RETRY_BOUNDS_S = 1.0
_SETTLE_S = 1.0
"""What a daemon has decided is read in far less; a server that is too busy for that answers without."""
_UNTRIED = "installed, and not tried yet because the disk is full"
_OWN_PROCESSES = 6
"""Runners and parked interpreters wait in the commands' group, and are no part of what a session may have; the agent
allows as many (`k8e.agent.limits`) where it does the counting."""


class LocalMachine:
    """Implements `k8e.substrate.machine.Machine`."""

    def __init__(self, settings: LocalSettings, network: Network | None = None) -> None:
        """Without a network a sandbox has a loopback and nothing else."""
        self._network = network or NoNetwork()
        # The mount table knows no symbolic links: whoever looks for mounts by place must name the true one.
        self._layout = Layout(settings.data_dir.resolve())
        self._agent = Agent(bundle=settings.bundle, argv=settings.agent_argv, env=settings.agent_env)
        self._site_files = settings.site_files
        self._drivers = _drivers(settings)
        self._trees = cgroup.hierarchies()
        self._disks = Disks(self._layout.disks, usual_bytes=settings.default_disk)
        self._idmaps = IdMaps()
        self._builder = Builder(self._disks, self._idmaps)
        self._shown = tuple(Bind(source=source, target=place) for place, source in settings.files.items())
        self._images = ImageStore(
            self._layout,
            (self._layout.images / "library", *settings.image_roots),
            node_tools=settings.node_tools or self._layout.node_tools,
            apt=settings.apt,
        )
        self._pulls = Pulls(
            settings.pulls,
            self._images.pulled,
            self._layout.images,
            keep_free=lambda: self._disk_space.reserve,
            used=lambda: {found.image for found in record.load_all(self._layout)},
        )
        self._prepared: set[str] = set()
        """Images that were ready once; one that is removed is pulled, and got ready, anew."""
        self._preparing = SharedWork()
        self._preparation_turns = OwnerTurns(_IMAGE_THREADS)
        self._preparations = Threads("k8e-image", _IMAGE_THREADS)
        self._workspaces = Workspaces(self._layout, self._disks)
        self._workspace_lock = threading.Lock()
        self._boots = Threads("k8e-boot", _BOOT_THREADS)
        self._removals = Threads("k8e-remove", _REMOVAL_THREADS)
        self._greeted: dict[SandboxId, Link] = {}
        """Links that heard a booted agent's hello: whoever dials first gets one instead of waiting for another."""
        self._probing = asyncio.Lock()
        self._capabilities: Capabilities | None = None
        self._prepare_directories()
        self._blocks = Blocks(self._layout.data_dir, {found.block for found in record.load_all(self._layout)})
        self._turns = Turns()
        self._disk_space = HostDiskSpace(self._layout, settings.reserve_disk)
        self._bounding = Threads("k8e-disk-space", 1)

    @property
    def data_dir(self) -> Path:
        """Where everything of this substrate lies."""
        return self._layout.data_dir

    @property
    def owners_dir(self) -> Path:
        return self._layout.owners

    def _prepare_directories(self) -> None:
        # Traversable, not listable: a sandbox's root, nobody to the host, must reach its own directory.
        for path in (self._layout.data_dir, self._layout.sandboxes):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o711)
        for path in (self._layout.images, self._layout.workspaces, self._layout.disks):
            path.mkdir(exist_ok=True, mode=0o700)
        for path in (self._layout.images, self._layout.disks):
            unfinished.clear(path)

    # --- what works here -------------------------------------------------------------------------------------------

    async def capabilities(self) -> Capabilities:
        async with self._probing:
            if self._capabilities is not None:
                return self._capabilities
            found = Capabilities(
                runtimes={runtime: await self._probe(runtime) for runtime in Runtime}, brokering=self._network.brokering
            )
            if _UNTRIED not in {each.detail for each in found.runtimes.values()}:
                self._capabilities = found
            return found

    def capacity(self) -> Capacity:
        return capacity.read(self._layout.data_dir)

    async def _probe(self, runtime: Runtime) -> Availability:
        """Boot a sandbox for real and hear its agent."""
        driver = self._drivers.get(runtime)
        if driver is None:
            return unavailable.reason(runtime)
        version = await self._boots.run(driver.probe)
        if not version.available:
            return version
        while (trouble := await self._try(runtime)) is not None:
            if isinstance(trouble, DiskFull):
                # That says nothing of the runtime: it counts as there, and is tried when there is room.
                return Availability(available=True, detail=_UNTRIED)
            if not driver.fall_back():
                detail = f"{version.detail} is installed but a probe failed: {trouble}"
                return Availability(available=False, detail=detail)
            _log.warning("trying another way to the network", extra={"runtime": runtime, "trouble": str(trouble)})
        return version

    async def _try(self, runtime: Runtime) -> Exception | None:
        """What went wrong, if anything did."""
        sandbox = SandboxId(f"probe-{runtime}-{secrets.token_hex(4)}")
        try:
            kernel.check()
            self._disk_space.check()
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                image = await self._boots.run(self._images.base, "host")
                credentials = Credentials(secret=secrets.token_hex(16), epoch=1)
                await self._create(sandbox, Template(runtime=runtime), image, credentials)
                link = await self.dial(sandbox, credentials)
                await link.close()
        except (K8eError, OSError, TimeoutError) as error:
            return error
        finally:
            await self.destroy(sandbox)
        return None

    async def tend(self) -> None:
        while True:
            try:
                pause_s = await self._bounding.run(self._disk_space.set_bounds)
            except OSError as error:
                _log.warning("cannot see how much room there is", extra={"error": str(error)})
                pause_s = _RETRY_BOUNDS_S
            await asyncio.sleep(pause_s)

    # --- life and death --------------------------------------------------------------------------------------------

    async def prepare(self, template: Template, owner: OwnerId, heard: Heard) -> Template:
        self._driver(template.runtime)
        if not self._images.is_here(template.image):
            self._disk_space.check()
            template = replace(template, image=await self._pulls.resolve(template.image, owner, heard))
        if template.image not in self._prepared:
            await self._preparing.run(template.image, heard, lambda tell: self._prepare(template, owner, tell))
        heard(ImageProgress(phase="ready", image=template.image))
        return template

    async def _prepare(self, template: Template, owner: OwnerId, heard: Heard) -> str:
        """Not where sandboxes boot: a new image takes seconds, and what it has of its own may take its time."""
        async with self._preparation_turns.turn(owner):
            heard(ImageProgress(phase="preparing"))
            with self._images.pulled.lease(digest_in(template.image)):
                await self._preparations.run(self._ready_image, template)
        self._prepared = {name for name in self._prepared if self._is_kept(name)} | {template.image}
        return template.image

    def _is_kept(self, image: str) -> bool:
        return not digest_in(image) or self._images.pulled.get(digest_in(image)) is not None

    async def create(self, sandbox: SandboxId, template: Template, credentials: Credentials) -> None:
        kernel.check()
        self._driver(template.runtime)
        self._disk_space.check()
        with self._images.pulled.lease(digest_in(template.image)):
            await self._create(sandbox, template, await self._boots.run(self._ready_image, template), credentials)

    def _ready_image(self, template: Template) -> Image:
        builder = venv.VenvBuilder(self._builder, self._layout, self._blocks, self._group, self._site_files)
        build = builder.using(self._driver(template.runtime), is_required=template.image == HOST)
        try:
            return self._images.ready(template.image, builder.recipe, build)
        except OSError as error:
            raise self._failure("prepare image", error) from error

    async def _create(self, sandbox: SandboxId, template: Template, image: Image, credentials: Credentials) -> None:
        step = "link its network"
        try:
            async with asyncio.timeout(_BOOT_TIMEOUT_S):
                netns = await self._network.attach(sandbox)
                step = "start its runtime"
                init = await self._boots.run(self._build, sandbox, template, image, netns, credentials.secret)
                paths = self._layout.sandbox(sandbox)
                step = "wait for its agent"
                await control.wait_for_socket(paths, init)
                control.capture(paths)
                step = "hear its agent"
                self._greeted[sandbox] = await self.dial(sandbox, credentials)
                control.seal(paths)
                self._check_still_there(sandbox)
        except BaseException as error:
            log = tail(self._layout.sandbox(sandbox).log)
            await self.destroy(sandbox)
            if full := full_disk.explained(error, self.data_dir):
                raise full from error
            if isinstance(error, OSError | TimeoutError | DialRefused | ProtocolError):
                raise SandboxFailed("boot", f"{step}: {error!r} {log}".strip()) from error
            raise

    def _check_still_there(self, sandbox: SandboxId) -> None:
        if not self.alive(sandbox):
            raise SandboxFailed("boot", "it was removed meanwhile")

    def _build(self, sandbox: SandboxId, template: Template, image: Image, netns: Path | None, secret: str) -> Process:
        with self._turns.at(sandbox):
            return self._build_alone(sandbox, template, image, netns, secret)

    def _build_alone(
        self, sandbox: SandboxId, template: Template, image: Image, netns: Path | None, secret: str
    ) -> Process:
        paths, block = self._layout.sandbox(sandbox), self._blocks.take()
        try:
            boot.make_directory(paths, block)
        except BaseException:
            self._blocks.give_back(block)
            raise
        known = Record(
            sandbox=sandbox,
            runtime=template.runtime,
            block=block,
            memory_bytes=template.memory_bytes,
            image=image.digest,
        )
        record.save(paths, known)
        init = self._builder.build(
            Blueprint(
                paths=paths,
                group=self._group(sandbox),
                runtime=self._driver(template.runtime),
                image=replace(image, binds=(*image.binds, *self._shown)),
                agent=self._agent,
                block=block,
                memory_bytes=template.memory_bytes,
                disk_bytes=template.disk_bytes,
                secret=secret,
                netns=netns,
                resolver=self._network.resolver,
            ),
            control.signs(paths),
        )
        record.save(paths, known.booted(init))
        return init

    async def dial(self, sandbox: SandboxId, credentials: Credentials) -> Link:
        greeted = self._greeted.pop(sandbox, None)
        if greeted is not None and not greeted.is_lost:
            return greeted
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT_S):
                return await self._dial(sandbox, credentials)
        except (OSError, TimeoutError) as error:
            raise SandboxFailed("dial agent", error) from error

    async def _dial(self, sandbox: SandboxId, credentials: Credentials) -> Link:
        """The socket's file exists a moment before anybody listens on it, and a backlog may be full."""
        with control.socket_path(self._layout.sandbox(sandbox)) as path:
            pause_s = _DIAL_RETRY_S
            while True:
                try:
                    return await Link.dial(path, credentials, timeout_s=_DIAL_TIMEOUT_S)
                except (ConnectionRefusedError, BlockingIOError):
                    if not self.alive(sandbox):
                        raise
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _DIAL_RETRY_MAX_S)

    async def set_egress(self, sandbox: SandboxId, policy: EgressPolicy) -> None:
        await self._network.set_policy(sandbox, policy)

    async def set_grants(self, sandbox: SandboxId, grants: tuple[Grant, ...]) -> str:
        return await self._network.set_grants(sandbox, grants)

    def decisions(self) -> AsyncIterator[Decision]:
        return self._network.decisions()

    async def settle_decisions(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self._network.settle()

    async def death(self, sandbox: SandboxId) -> Death:
        known = self._record(sandbox)
        if known is None or known.init is None:
            return Death(detail="it does not exist")
        await wait_death(known.init)
        if self._group(sandbox).memory_kills() and self._driver(known.runtime).handles_oom_inside:
            return Death(oom=True, detail="the kernel killed it for memory")
        return Death(detail=tail(self._layout.sandbox(sandbox).log) or "its init process ended")

    def mark_warm(self, sandbox: SandboxId, template: Template) -> None:
        try:
            record.mark_warm(self._layout.sandbox(sandbox), template)
        except OSError as error:
            raise self._failure("mark as warm", error) from error

    def mark_used(self, sandbox: SandboxId) -> None:
        try:
            record.mark_used(self._layout.sandbox(sandbox))
        except OSError as error:
            raise self._failure("mark as used", error) from error

    async def warm(self) -> Mapping[SandboxId, Template]:
        return await self._removals.run(record.load_warm, self._layout)

    def alive(self, sandbox: SandboxId) -> bool:
        known = self._record(sandbox)
        return known is not None and known.init is not None and is_alive(known.init)

    async def destroy(self, sandbox: SandboxId) -> None:
        await self._removals.run(self._remove, sandbox)
        # Only when nothing of it runs any more: its address is the next one's to have.
        await self._network.detach(sandbox)
        # Last: a creation that this removal waited for may only now have left its link.
        greeted = self._greeted.pop(sandbox, None)
        if greeted is not None:
            await greeted.close()

    def _remove(self, sandbox: SandboxId) -> None:
        """One removal at a time: a second one waits, and then finds nothing to do."""
        with self._turns.at(sandbox):
            self._remove_alone(sandbox)

    def _remove_alone(self, sandbox: SandboxId) -> None:
        paths = self._layout.sandbox(sandbox)
        known = record.load(paths)
        try:
            boot.remove(paths, self._group(sandbox))
            with self._workspace_lock:
                self._workspaces.release(sandbox)
        except OSError as error:
            raise SandboxFailed("destroy", error) from error
        if known is not None:
            self._blocks.give_back(known.block)

    async def survivors(self) -> frozenset[SandboxId]:
        return await self._removals.run(self._survivors) | await self._network.attached()

    def _survivors(self) -> frozenset[SandboxId]:
        """By directory, mount, loop device, cgroup and use of a workspace: any one of them is a trace."""
        home = self._layout.sandboxes
        places = [entry.target for entry in mount.mounts_under(home)]
        places += [Path(backing) for backing in loop.backing_files().values() if Path(backing).is_relative_to(home)]
        # The directory may itself be a mount, and then hold what its file system puts into every root.
        names = {place.relative_to(home).parts[0] for place in (*home.iterdir(), *places) if place != home}
        names |= cgroup.leftover_groups(self._trees, str(self._layout.data_dir))
        names |= {path.name for path in self._layout.workspaces.glob("*/users/*")}
        return frozenset(SandboxId(name) for name in names - {"lost+found"})

    # --- at claim --------------------------------------------------------------------------------------------------

    async def configure(self, sandbox: SandboxId, claim: Claim, link: Link) -> None:
        known = self._known(sandbox)
        driver = self._driver(known.runtime)
        try:
            self._apply_limits(known, claim)
            await self._network.set_policy(sandbox, claim.egress)
            await link.call("configure", {"processes": claim.processes})
            if claim.workspace is not None and claim.workspace != known.workspace:
                await self._boots.run(self._give_workspace, known, claim.workspace)
                if driver.binds_workspace_inside:
                    await link.call("bind", {"source": f"{LIVE_AT}/ws", "target": "/workspace"})
                # Only now: a crash before this line makes the engine ask again, and every step above can be repeated.
                await self._boots.run(self._remember_workspace, known, claim.workspace)
        except (OSError, TimeoutError, LinkLost, RemoteError) as error:
            raise self._failure("configure", error) from error

    def _apply_limits(self, known: Record, claim: Claim) -> None:
        """A few writes to kernel files; 0.1 ms, so not worth a thread."""
        group = self._group(known.sandbox)
        group.limit_cpus(claim.cpus)
        if self._driver(known.runtime).host_counts_tasks:
            group.limit_tasks(claim.processes + _OWN_PROCESSES, cgroup.COMMANDS)

    def _give_workspace(self, known: Record, workspace: WorkspaceId) -> None:
        # SAFETY: never beside a removal, which would take the workspace's files for the sandbox's.
        with self._turns.at(known.sandbox):
            self._known(known.sandbox)
            self._mount_workspace(known, workspace)

    def _remember_workspace(self, known: Record, workspace: WorkspaceId) -> None:
        with self._turns.at(known.sandbox):
            record.save(self._layout.sandbox(known.sandbox), known.using(workspace))

    def _mount_workspace(self, known: Record, workspace: WorkspaceId) -> None:
        with self._workspace_lock:
            source = self._workspaces.source(workspace, known.sandbox)
        target = self._live_target(known)
        if self._driver(known.runtime).binds_workspace_inside and target.is_mount():
            return
        with mount.idmapped(source, self._idmaps.descriptor(known.block)) as tree:
            mount.move_to(tree, target)

    def _live_target(self, known: Record) -> Path:
        """/workspace is a slave of ours, unless the agent binds a mount beside it to /workspace."""
        paths = self._layout.sandbox(known.sandbox)
        if not self._driver(known.runtime).binds_workspace_inside:
            return paths.workspace
        target = paths.live / "ws"
        target.mkdir(exist_ok=True)
        return target

    async def out_of_memory(self, sandbox: SandboxId) -> None:
        known, group = self._record(sandbox), self._group(sandbox)
        if known is None or not self._driver(known.runtime).handles_oom_inside:
            # Gone, or the kernel chooses one process by itself and the sandbox lives on: nothing for the agent to do.
            await asyncio.Event().wait()
            return
        memory = self._memory(known)
        try:
            await oom.wait(group, memory.limit_bytes)
            oom.lend(group, memory.limit_bytes, memory.headroom_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise SandboxFailed("watch memory", error) from error
            await asyncio.Event().wait()  # removing a group wakes its watchers

    async def relieved(self, sandbox: SandboxId) -> None:
        memory = self._memory(self._known(sandbox))
        try:
            await self._boots.run(oom.restore, self._group(sandbox), memory.limit_bytes, memory.headroom_bytes)
        except OSError as error:
            raise SandboxFailed("restore memory limit", error) from error

    async def usage(self, sandboxes: Collection[SandboxId]) -> Mapping[SandboxId, Usage]:
        return await asyncio.to_thread(lambda: {each: usage.read(self._group(each)) for each in sandboxes})

    # --- workspaces ------------------------------------------------------------------------------------------------

    async def create_workspace(self, workspace: WorkspaceId, disk_bytes: int) -> None:
        if not self._layout.workspace(workspace).image.exists():
            self._disk_space.check()
        await self._boots.run(self._with_workspaces, self._workspaces.create, workspace, disk_bytes)

    async def delete_workspace(self, workspace: WorkspaceId) -> None:
        await self._removals.run(self._with_workspaces, self._workspaces.delete, workspace)

    async def share_workspace(self, parent: SandboxId) -> WorkspaceId:
        self._known(parent)
        return shared_name(parent)

    def _with_workspaces(self, action: Callable[..., None], *args: object) -> None:
        try:
            with self._workspace_lock:
                action(*args)
        except OSError as error:
            raise self._failure("workspace", error) from error

    def _failure(self, step: str, error: Exception) -> K8eError:
        return full_disk.explained(error, self.data_dir) or SandboxFailed(step, error)

    # --- looking up ------------------------------------------------------------------------------------------------

    def _driver(self, runtime: Runtime) -> OciRuntime:
        driver = self._drivers.get(runtime)
        if driver is None:
            raise HostUnsupported(unavailable.reason(runtime).detail)
        return driver

    def _group(self, sandbox: SandboxId) -> cgroup.SandboxGroup:
        return cgroup.SandboxGroup(self._trees, sandbox, owner=str(self._layout.data_dir))

    def _record(self, sandbox: SandboxId) -> Record | None:
        return record.load(self._layout.sandbox(sandbox))

    def _known(self, sandbox: SandboxId) -> Record:
        known = self._record(sandbox)
        if known is None:
            raise SandboxFailed("look up sandbox", f"{sandbox} does not exist")
        return known

    def _memory(self, known: Record) -> MemoryPlan:
        return memory_plan(known.memory_bytes, self._driver(known.runtime).overhead_bytes)


def _drivers(settings: LocalSettings) -> dict[Runtime, OciRuntime]:
    drivers: dict[Runtime, OciRuntime] = {}
    if settings.runsc is not None:
        drivers[Runtime.GVISOR] = Gvisor(settings.runsc)
    if settings.runc is not None:
        drivers[Runtime.CONTAINER] = Container(settings.runc)
    return drivers
