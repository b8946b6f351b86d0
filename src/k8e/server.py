"""The server: settings → substrate → engine → doors, one process, one data directory.

Stopping keeps every session for the next start; only `destroy` removes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import fcntl
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from k8e import __version__
from k8e.agent import hook, libc
from k8e.doors.grpc import Address, serve
from k8e.doors.service import ServerFacts, Service
from k8e.egress.client import EgressClient
from k8e.egress.defaults import CA_BUNDLE_AT, Registries
from k8e.egress.defaults import read as read_registries
from k8e.engine.engine import Engine
from k8e.engine.settings import EgressSettings, EngineSettings, PoolSettings, Quotas
from k8e.errors import Conflict, HostUnsupported
from k8e.identity import LoopbackIdentifier, SocketTable, ensure_server_certificate, host_names, uid_owner
from k8e.identity.sealing import FileSealer
from k8e.model import Limits, Runtime, SessionSpec
from k8e.policy import entries
from k8e.settings import ServerSettings
from k8e.setup.provision import Provisioned, ensure
from k8e.setup.report import Reporter
from k8e.substrate.local.network import Network
from k8e.substrate.local.settings import LocalSettings, SiteHook
from k8e.substrate.local.substrate import LocalSubstrate

__all__ = ["egress_settings", "local_settings", "locked", "main", "make_directories", "run"]

log = logging.getLogger(__name__)

STOP_BOUND_S = 60
"""Sessions live on without us, so a stop that takes longer is simply cut off."""


def run(settings: ServerSettings, *, environ: Mapping[str, str], report: Reporter) -> None:
    """Serve until told to stop. Raises: Conflict when another server has the directory, HostUnsupported."""
    make_directories(settings.data_dir)
    with locked(settings.data_dir / "server" / "lock"):
        with ThreadPoolExecutor(max_workers=1) as asking:
            registries = asking.submit(read_registries, environ)
            provisioned = ensure(Path(settings.tools_dir or settings.data_dir), report, env=environ)
        asyncio.run(main(settings, provisioned, registries.result()))


async def main(settings: ServerSettings, provisioned: Provisioned, registries: Registries) -> None:
    """The whole server, in the order in which it is built."""
    libc.take_short_turns()
    stop = Stop()
    certificate = ensure_server_certificate(
        settings.data_dir / "server" / "tls", names=names(settings), now=datetime.datetime.now(datetime.UTC)
    )
    local = local_settings(settings, provisioned, files=bundle_file(settings.data_dir, registries))
    doors: dict[str, str] = {}
    sealer = FileSealer(settings.data_dir / "server" / "secrets.key")
    async with (
        network(settings.data_dir, registries.ca_bundle) as reach,
        Engine.open(engine_settings(settings, registries), LocalSubstrate(local, reach), sealer) as engine,
    ):
        service = Service(engine, defaults=session_defaults(settings), facts=facts(settings, doors, stop))
        with contextlib.closing(SocketTable()) as sockets:
            async with contextlib.AsyncExitStack() as open_doors:
                for number, (host, port) in enumerate(settings.addresses()):
                    serving = serve(
                        service,
                        address=Address(host, port),
                        credentials=certificate,
                        identify=lambda bound: LoopbackIdentifier(
                            bound.host, bound.port, sockets, operator=os.geteuid()
                        ),
                        undrained=stop.leave,
                    )
                    bound = await open_doors.enter_async_context(listening(serving, host, port))
                    doors["grpc" if not number else f"grpc-{number + 1}"] = f"grpcs://{bound}"
                with published(settings.data_dir / "server" / "server.json", doors):
                    say_ready(engine, doors)
                    await stop.asked()
        if stop.destroy:
            await engine.destroy_all()
    log.info("server stopped")


class Stop:
    """The wish to stop, from a signal or from a caller."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.destroy = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask, False)

    def ask(self, destroy: bool) -> None:
        log.info("server stops", extra={"destroy": destroy})
        self.destroy = self.destroy or destroy
        if not self.destroy:
            signal.alarm(STOP_BOUND_S)
        self._event.set()

    def leave(self) -> None:
        """Go at once, as if killed, when calls still run: their commands then go on for the next start."""
        if not self.destroy:
            log.info("server leaves running commands to the next one")
            logging.shutdown()
            os._exit(0)

    async def asked(self) -> None:
        await self._event.wait()


def make_directories(data_dir: Path) -> None:
    """Others may pass through to the CA's certificate; the engine's records are nobody else's."""
    for path, mode in ((data_dir, 0o755), (data_dir / "server", 0o755), (data_dir / "engine", 0o700)):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the data directory; the kernel lets go when we die, however that happens."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Conflict(f"another server (pid {file.read().strip()}) uses {path.parent.parent}") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def published(path: Path, doors: Mapping[str, str]) -> Iterator[None]:
    """Tell clients on this machine where we are, while we are there."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"pid": os.getpid(), "doors": dict(doors)}) + "\n", encoding="utf-8")
    temporary.chmod(0o644)
    temporary.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def listening(
    serving: contextlib.AbstractAsyncContextManager[Address], host: str, port: int
) -> AsyncIterator[Address]:
    """A door, or the reason why its address cannot be had."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            bound = await stack.enter_async_context(serving)
        except OSError as error:
            raise Conflict(f"cannot listen on {host}:{port}; is something else there? ({error})") from error
        yield bound


@contextlib.asynccontextmanager
async def network(data_dir: Path, trust: bytes | None) -> AsyncIterator[Network | None]:
    """The way out for sandboxes; where it cannot be had they have none, rather than an open one."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            reach = await stack.enter_async_context(EgressClient.open(data_dir, trust=trust))
        except HostUnsupported as error:
            log.error("sandboxes have no network", extra={"reason": str(error)})  # noqa: TRY400 - not ours
            reach = None
        yield reach


def names(settings: ServerSettings) -> list[str]:
    """Every name the certificate must carry."""
    listened = [host for host, _ in settings.addresses() if host not in {"0.0.0.0", "::"}]  # noqa: S104 - excluded
    advertised = [settings.advertise_hostname] if settings.advertise_hostname else []
    return [*host_names(), *listened, *advertised]


def bundle_file(data_dir: Path, registries: Registries) -> Mapping[str, Path]:
    """The certificates that the operator's tools trust, for sandboxes; an old file lives on in those that have it."""
    if registries.ca_bundle is None:
        return {}
    path = data_dir / "server" / "registries.crt"
    temporary = path.with_suffix(".new")
    temporary.write_bytes(registries.ca_bundle)
    temporary.chmod(0o644)
    temporary.replace(path)
    return {CA_BUNDLE_AT: path}


def local_settings(
    settings: ServerSettings, provisioned: Provisioned, *, files: Mapping[str, Path] | None = None
) -> LocalSettings:
    return LocalSettings(
        data_dir=settings.data_dir,
        runsc=Path(provisioned.runsc.path) if provisioned.runsc else None,
        runc=provisioned.runc,
        bundle=provisioned.bundle.path,
        agent_argv=provisioned.bundle.argv,
        agent_env=provisioned.bundle.env,
        site_hook=SiteHook(name=hook.NAME, line=hook.LINE),
        files=files or {},
        node_tools=provisioned.node,
    )


def engine_settings(settings: ServerSettings, registries: Registries) -> EngineSettings:
    if settings.pool_min > settings.pool_max:
        raise HostUnsupported(f"pool_min {settings.pool_min} is more than pool_max {settings.pool_max}")
    return EngineSettings(
        data_dir=settings.data_dir / "engine",
        default=session_defaults(settings).template(),
        limits=session_defaults(settings).limits,
        pool=PoolSettings(min=settings.pool_min, max=settings.pool_max),
        quotas=Quotas(sessions=settings.sessions_per_owner),
        egress=egress_settings(settings, registries),
    )


def egress_settings(settings: ServerSettings, registries: Registries) -> EgressSettings:
    """The operator's registries and code hosts for everybody, and what else the operator lists."""
    listed = tuple(entries.parse(entry) for entry in settings.default_hosts)
    return EgressSettings(
        rules=(*registries.hosts, *EgressSettings().rules, *listed),
        allow_open=settings.allow_open_network,
        env=registries.env,
        ca_bundle=registries.ca_bundle,
    )


def session_defaults(settings: ServerSettings) -> SessionSpec:
    limits = Limits(cpus=settings.default_cpu, memory_bytes=settings.default_memory, disk_bytes=settings.default_disk)
    return SessionSpec(runtime=Runtime(settings.default_runtime), image=settings.default_image, limits=limits)


def facts(settings: ServerSettings, doors: Mapping[str, str], stop: Stop) -> ServerFacts:
    return ServerFacts(
        pid=os.getpid(),
        data_dir=str(settings.data_dir),
        version=__version__,
        doors=lambda: doors,
        operator=uid_owner(os.geteuid()),
        stop=stop.ask,
    )


def say_ready(engine: Engine, doors: Mapping[str, str]) -> None:
    status = engine.status()
    available = [name for name, each in status.runtimes.items() if each.available]
    log.info("server ready", extra={"doors": dict(doors), "runtimes": available, "sessions": status.sessions})
    if Runtime.GVISOR not in available:
        log.warning("gVisor is not available; `container` is a weaker boundary and is never chosen by itself")
