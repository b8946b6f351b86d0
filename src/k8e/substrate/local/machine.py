"""Single sandboxes by this machine's kernel.

Blocking work runs in threads of our own, boots apart from removals, so a burst of one never queues behind the other.
Nothing is remembered that a restart would lose: each method starts from the record on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
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
from k8e.substrate.local import record, unfinished, venv
from k8e.substrate.local.disk_space import HostDiskSpace
from k8e.substrate.local.disks import Disks
from k8e.substrate.local.host import capacity, kernel, usage
from k8e.substrate.local.host.process import is_alive, wait_death
from k8e.substrate.local.idmaps import IdMaps
from k8e.substrate.local.images.pulls import Pulls
from k8e.substrate.local.images.shared_work import Heard, OwnerTurns, SharedWork
from k8e.substrate.local.images.store import HOST, ImageStore, digest_in
from k8e.substrate.local.layout import Layout
from k8e.substrate.local.network import Network, NoNetwork
from k8e.substrate.local.plan import Agent, Bind, Image, with_image_env
from k8e.substrate.local.record import Record
from k8e.substrate.local.runtimes import built_in
from k8e.substrate.local.runtimes.driver import Blueprint, Driver, LocalSandbox
from k8e.substrate.local.sandboxes import LocalSandboxes
from k8e.substrate.local.settings import LocalSettings
from k8e.substrate.local.threads import Threads
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


class LocalMachine:
    """Implements `k8e.substrate.machine.Machine`."""

    def __init__(
        self, settings: LocalSettings, network: Network | None = None, *, more_drivers: Iterable[Driver] = ()
    ) -> None:
        """Without a network a sandbox has a loopback and nothing else.

        `more_drivers` come beside those that are built in. No setting leads here, so no user can choose them.
        """
        self._network = network or NoNetwork()
        # The mount table knows no symbolic links: whoever looks for mounts by place must name the true one.
        self._layout = Layout(settings.data_dir.resolve())
        self._agent = Agent(bundle=settings.bundle, argv=settings.agent_argv, env=settings.agent_env)
        disks = Disks(self._layout.disks, usual_bytes=settings.default_disk)
        self._drivers = built_in.drivers(settings, disks, IdMaps())
        self._drivers.update({driver.runtime: driver for driver in more_drivers})
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
        self._workspaces = Workspaces(self._layout, disks)
        self._boots = Threads("k8e-boot", _BOOT_THREADS)
        self._removals = Threads("k8e-remove", _REMOVAL_THREADS)
        self._greeted: dict[SandboxId, Link] = {}
        """Links that heard a booted agent's hello: whoever dials first gets one instead of waiting for another."""
        self._probing = asyncio.Lock()
        self._capabilities: Capabilities | None = None
        self._prepare_directories()
        self._sandboxes = LocalSandboxes(self._layout, self._workspaces, self._drivers.values())
        self._venvs = venv.VenvBuilder(self._sandboxes, settings.site_files)
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
        """Boot a sandbox for real and hear its agent. One runtime's trouble, whatever it is, is not the server's."""
        if reason := self._cannot_build(runtime):
            return Availability(available=False, detail=reason)
        try:
            return await self._tried(runtime, self._drivers[runtime])
        except Exception as error:  # noqa: BLE001 - a driver may raise anything, and another one may work
            _log.exception("cannot find out whether a runtime works here", extra={"runtime": runtime})
            return Availability(available=False, detail=f"finding out whether it works failed: {error!r}")

    async def _tried(self, runtime: Runtime, driver: Driver) -> Availability:
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
        """What went wrong, if anything did. Raises: whatever else its driver does."""
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
            except Exception as error:  # noqa: BLE001 - whatever it was, disks must not grow without bounds afterwards
                _log.warning("cannot see how much room there is", extra={"error": str(error) or repr(error)})
                pause_s = _RETRY_BOUNDS_S
            await asyncio.sleep(pause_s)

    # --- life and death --------------------------------------------------------------------------------------------

    async def prepare(self, template: Template, owner: OwnerId, heard: Heard) -> Template:
        self._driver_to_build(template.runtime)
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
        self._driver_to_build(template.runtime)
        self._disk_space.check()
        with self._images.pulled.lease(digest_in(template.image)):
            await self._create(sandbox, template, await self._boots.run(self._ready_image, template), credentials)

    def _ready_image(self, template: Template) -> Image:
        build = self._venvs.using(self._driver_to_build(template.runtime), is_required=template.image == HOST)
        try:
            return self._images.ready(template.image, self._venvs.recipe, build)
        except OSError as error:
            raise self._failure("prepare image", error) from error

    async def _create(self, sandbox: SandboxId, template: Template, image: Image, credentials: Credentials) -> None:
        driver, step = self._driver_to_build(template.runtime), "link its network"
        try:
            async with asyncio.timeout(_BOOT_TIMEOUT_S):
                netns = await self._network.attach(sandbox)
                step = "start its runtime"
                blueprint = self._blueprint(template, image, netns, credentials.secret)
                init = await self._boots.run(self._sandboxes.build, sandbox, driver, blueprint, template.memory_bytes)
                step = "wait for its agent"
                built = self._sandboxes.of(self._sandboxes.known(sandbox))
                await driver.listening(built, init)
                step = "hear its agent"
                self._greeted[sandbox] = await self.dial(sandbox, credentials)
                # SAFETY: before anybody gets the link, and so before anything untrusted runs.
                driver.seal(built)
                self._check_still_there(sandbox)
        except BaseException as error:
            log = self._last_words(driver, sandbox)
            await self.destroy(sandbox)
            if full := full_disk.explained(error, self.data_dir):
                raise full from error
            if isinstance(error, OSError | TimeoutError | DialRefused | ProtocolError):
                raise SandboxFailed("boot", f"{step}: {error!r} {log}".strip()) from error
            raise

    def _last_words(self, driver: Driver, sandbox: SandboxId) -> str:
        try:
            return driver.last_words(self._layout.sandbox(sandbox))
        except Exception as error:  # noqa: BLE001 - whatever it is, the sandbox is still to be removed
            return f"(what it said last cannot be read: {error!r})"

    def _check_still_there(self, sandbox: SandboxId) -> None:
        if not self.alive(sandbox):
            raise SandboxFailed("boot", "it was removed meanwhile")

    def _blueprint(self, template: Template, image: Image, netns: Path | None, secret: str) -> Blueprint:
        return Blueprint(
            image=replace(image, binds=(*image.binds, *self._shown)),
            agent=with_image_env(self._agent, image),
            disk_bytes=template.disk_bytes,
            secret=secret,
            netns=netns,
            resolver=self._network.resolver,
        )

    async def dial(self, sandbox: SandboxId, credentials: Credentials) -> Link:
        greeted = self._greeted.pop(sandbox, None)
        if greeted is not None and not greeted.is_lost:
            return greeted
        driver, target = self._held(sandbox)
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT_S):
                return await self._dial(driver, target, credentials)
        except (OSError, TimeoutError) as error:
            raise SandboxFailed("dial agent", error) from error

    async def _dial(self, driver: Driver, target: LocalSandbox, credentials: Credentials) -> Link:
        """There may be a place to dial a moment before anybody listens there, and a backlog may be full."""
        pause_s = _DIAL_RETRY_S
        while True:
            try:
                return await driver.dial(target, credentials, timeout_s=_DIAL_TIMEOUT_S)
            except (ConnectionRefusedError, BlockingIOError):
                if not self.alive(target.id):
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
        known = self._sandboxes.record(sandbox)
        if known is None or known.init is None:
            return Death(detail="it does not exist")
        await wait_death(known.init)
        driver = self._drivers.get(known.runtime)
        try:
            return Death() if driver is None else driver.cause_of_death(self._sandboxes.of(known))
        except Exception as error:  # noqa: BLE001 - whatever it is, that it is dead is known
            _log.warning("cannot see why a sandbox died", extra={"sandbox": sandbox, "error": repr(error)})
            return Death()

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
        known = self._sandboxes.record(sandbox)
        return known is not None and known.init is not None and is_alive(known.init)

    async def destroy(self, sandbox: SandboxId) -> None:
        failures: list[Exception] = []
        with _kept(failures):
            await self._removals.run(self._sandboxes.remove, sandbox)
        with _kept(failures):
            # SAFETY: only when nothing of it runs any more: its address is the next one's to have.
            if not failures or not await self._removals.run(self._sandboxes.has_processes, sandbox):
                await self._network.detach(sandbox)
        # Last: a creation that this removal waited for may only now have left its link.
        greeted = self._greeted.pop(sandbox, None)
        if greeted is not None:
            with _kept(failures):
                await greeted.close()
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise SandboxFailed("destroy", "; ".join(map(str, failures))) from ExceptionGroup("destroy", failures)

    async def survivors(self) -> frozenset[SandboxId]:
        return await self._removals.run(self._sandboxes.found) | await self._network.attached()

    # --- at claim --------------------------------------------------------------------------------------------------

    async def configure(self, sandbox: SandboxId, claim: Claim, link: Link) -> None:
        known = self._sandboxes.known(sandbox)
        driver, target = self._driver(known.runtime), self._sandboxes.of(known)
        try:
            driver.limit(target, claim)
            await self._network.set_policy(sandbox, claim.egress)
            await link.call("configure", {"processes": claim.processes})
            if claim.workspace is not None and claim.workspace != known.workspace:
                await self._boots.run(self._give_workspace, driver, target, claim.workspace)
                await driver.enter_workspace(target, link)
                # Only now: a crash before this line makes the engine ask again, and every step above can be repeated.
                await self._boots.run(self._remember_workspace, known, claim.workspace)
        except (OSError, TimeoutError, LinkLost, RemoteError) as error:
            raise self._failure("configure", error) from error

    def _give_workspace(self, driver: Driver, target: LocalSandbox, workspace: WorkspaceId) -> None:
        # SAFETY: never beside a removal, which would take the workspace's files for the sandbox's.
        with self._sandboxes.turn(target.id):
            self._sandboxes.known(target.id)
            driver.mount_workspace(target, self._workspaces.source(workspace, target.id))

    def _remember_workspace(self, known: Record, workspace: WorkspaceId) -> None:
        with self._sandboxes.turn(known.sandbox):
            self._sandboxes.use(known, workspace)

    async def out_of_memory(self, sandbox: SandboxId) -> None:
        known = self._sandboxes.record(sandbox)
        if known is None:
            await asyncio.Event().wait()  # it is gone: nothing for its agent to do
            return
        await self._driver(known.runtime).out_of_memory(self._sandboxes.of(known))

    async def relieved(self, sandbox: SandboxId) -> None:
        driver, target = self._held(sandbox)
        try:
            await self._boots.run(driver.relieved, target)
        except OSError as error:
            raise SandboxFailed("restore memory limit", error) from error

    async def usage(self, sandboxes: Collection[SandboxId]) -> Mapping[SandboxId, Usage]:
        return await asyncio.to_thread(lambda: {each: usage.read(self._sandboxes.group(each)) for each in sandboxes})

    # --- workspaces ------------------------------------------------------------------------------------------------

    async def create_workspace(self, workspace: WorkspaceId, disk_bytes: int) -> None:
        if not self._layout.workspace(workspace).image.exists():
            self._disk_space.check()
        await self._boots.run(self._with_workspaces, self._workspaces.create, workspace, disk_bytes)

    async def delete_workspace(self, workspace: WorkspaceId) -> None:
        await self._removals.run(self._with_workspaces, self._workspaces.delete, workspace)

    async def share_workspace(self, parent: SandboxId) -> WorkspaceId:
        self._sandboxes.known(parent)
        return shared_name(parent)

    def _with_workspaces(self, action: Callable[..., None], *args: object) -> None:
        try:
            action(*args)
        except OSError as error:
            raise self._failure("workspace", error) from error

    def _failure(self, step: str, error: Exception) -> K8eError:
        return full_disk.explained(error, self.data_dir) or SandboxFailed(step, error)

    # --- drivers ---------------------------------------------------------------------------------------------------

    def _held(self, sandbox: SandboxId) -> tuple[Driver, LocalSandbox]:
        """Raises: SandboxFailed where it does not exist."""
        known = self._sandboxes.known(sandbox)
        return self._driver(known.runtime), self._sandboxes.of(known)

    def _driver(self, runtime: Runtime) -> Driver:
        """The driver of sandboxes that exist, whether or not it can build new ones here."""
        driver = self._drivers.get(runtime)
        if driver is None:
            raise HostUnsupported(built_in.not_built_in(runtime))
        return driver

    def _driver_to_build(self, runtime: Runtime) -> Driver:
        """The driver for a new sandbox. Raises: HostUnsupported."""
        if reason := self._cannot_build(runtime):
            raise HostUnsupported(reason)
        return self._drivers[runtime]

    def _cannot_build(self, runtime: Runtime) -> str:
        """Why not; empty where it can be tried."""
        driver = self._drivers.get(runtime)
        return built_in.not_built_in(runtime) if driver is None else driver.missing


@contextlib.contextmanager
def _kept(failures: list[Exception]) -> Iterator[None]:
    """One step of a removal: its failure is kept for the end, so that the next step is taken all the same."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, it is raised at the end
        failures.append(error)
