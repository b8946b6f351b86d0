"""The server: settings → substrate → engine → doors, one process, one data directory.

Stopping keeps every session for the next start; only `destroy` removes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from k8e import __version__, full_disk, locks, whole
from k8e.agent import hook, libc
from k8e.apt.configuration import AptConfiguration
from k8e.apt.configuration import read as read_apt
from k8e.audit import BUSY, MAIN, Journal
from k8e.byte_budget import ByteBudget
from k8e.doors import connect
from k8e.doors.connect import Bounds
from k8e.doors.grpc import Address, FrontSettings, Listening, listening, serve
from k8e.doors.service import Edge, IdentityRpcs, McpRpcs, ServerFacts, Service
from k8e.doors.service.auditing import Auditing
from k8e.doors.service.errors import single
from k8e.doors.service.presence import Presence
from k8e.doors.service.rates import Rates
from k8e.egress.client import EgressClient
from k8e.egress.defaults import CA_BUNDLE_AT, Registries
from k8e.egress.defaults import read as read_registries
from k8e.engine import ceilings, gates
from k8e.engine.ceilings import Ceilings, Share
from k8e.engine.engine import Engine
from k8e.engine.settings import EgressSettings, EngineSettings, KeptLimits, Quotas
from k8e.errors import Conflict, HostUnsupported, K8eError, StoreFailed
from k8e.identity import Office, SocketTable
from k8e.identity.sealing import FileSealer
from k8e.inside import InsideMcp
from k8e.model import Limits, Runtime, SessionSpec
from k8e.policy import entries
from k8e.settings import AUTOSTARTED, ServerSettings, address
from k8e.setup.provision import Provisioned, ensure
from k8e.setup.report import Reporter
from k8e.skills.folder import stage
from k8e.substrate.local.host import capacity
from k8e.substrate.local.images.pulls import PullSettings
from k8e.substrate.local.machine import LocalMachine
from k8e.substrate.local.network import Network
from k8e.substrate.local.settings import LocalSettings
from k8e.substrate.machine_substrate import MachineSubstrate
from k8e.substrate.pool import PoolSettings
from k8e.telemetry import page as telemetry_page
from k8e.telemetry.metrics import Metrics
from k8e.telemetry.several import Several
from k8e.trust import announce_authority, renew, server_certificate

if TYPE_CHECKING:
    from k8e.telemetry.traces import Tracing

__all__ = ["egress_settings", "local_settings", "locked", "main", "make_directories", "published", "run"]

log = logging.getLogger(__name__)

DESCRIPTORS_EACH = 8
"""Of those that we may open, a connection of the gRPC door takes two; the rest is for sandboxes."""
USERS = 4
"""How many may have as many connections of the local door as they like before the server runs short."""
LEAST_CONNECTIONS = 256
"""For one of them, however few descriptors there are."""
SWITCH_S = 0.001
"""How long the event loop waits for the interpreter at most, while another thread of ours computes."""
ANSWERS_PART = 16
"""Of the host's memory, the part that answers of all owners may hold."""
CLOSING_SHARE = 16
"""Of the descriptors, one in so many may belong to a connection that was turned away and waits for its end."""
STOP_BOUND_S = 60
"""Sessions live on without us, so a stop that takes longer is simply cut off."""


def run(settings: ServerSettings, *, environ: Mapping[str, str], report: Reporter) -> None:
    """Serve until told to stop. Raises: Conflict when another has the directory or an address, HostUnsupported."""
    try:
        serve_until_stopped(settings, environ, report)
    except (OSError, StoreFailed) as error:
        full = full_disk.explained(error, settings.data_dir)
        if full is None:
            raise
        raise full from error


def serve_until_stopped(settings: ServerSettings, environ: Mapping[str, str], report: Reporter) -> None:
    make_directories(settings.data_dir)
    if full_disk.make_room(settings.data_dir / "server" / "ballast"):
        log.error("the disk is full: remove sandboxes or free space", extra={"directory": str(settings.data_dir)})
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with locked(settings.data_dir):
        for directory in (
            settings.data_dir / "server",
            settings.data_dir / "server" / "tls",
            settings.data_dir / MAIN,
            settings.data_dir / BUSY,
        ):
            whole.clear(directory)
        stage_skill(settings.data_dir / "server" / "skills")
        with ThreadPoolExecutor(max_workers=1) as asking:
            registries = asking.submit(read_registries, environ)
            apt = read_apt(environ) if settings.allow_apt else None
            provisioned = ensure(
                Path(settings.tools_dir or settings.data_dir),
                report,
                env=environ,
                addresses=settings.addresses(),
                gvisor_timeout_s=settings.gvisor_timeout,
                gvisor_release=settings.gvisor_release,
            )
        try:
            # Before any sandbox is made: a server that cannot be reached must not fill a pool first.
            with reachable(settings) as places:
                asyncio.run(main(settings, provisioned, registries.result(), places, environ, apt))
        except BaseExceptionGroup as error:
            raise single(error) from error


async def main(
    settings: ServerSettings,
    provisioned: Provisioned,
    registries: Registries,
    places: Sequence[Listening],
    environ: Mapping[str, str],
    apt: AptConfiguration | None = None,
) -> None:
    """The whole server, in the order in which it is built."""
    libc.take_short_turns()
    sys.setswitchinterval(SWITCH_S)
    stop = Stop()
    office = Office.open(settings.data_dir / "server", clock=time.time)
    files = bundle_file(settings.data_dir, registries)
    local = local_settings(settings, provisioned, environ=environ, files=files, apt=apt)
    egress = egress_settings(settings, registries, apt)
    doors: dict[str, str] = {}
    sealer = FileSealer(settings.data_dir / "server" / "secrets.key")
    metrics = Metrics()
    mcp = InsideMcp(office.keys, grace_s=settings.mcp_grace)
    async with (
        trail(settings, stop) as auditing,
        tracing(settings) as traces,
        network(settings.data_dir, registries.ca_bundle) as reach,
        Engine.open(
            engine_settings(settings, egress),
            MachineSubstrate(LocalMachine(local, reach), pool_settings(settings)),
            sealer,
            Several(metrics, *traces),
            auditing.at_gate,
        ) as engine,
    ):
        service = Service(
            engine,
            defaults=session_defaults(settings),
            facts=facts(settings, doors, stop, office.authority.fingerprint, egress),
            identity=IdentityRpcs(office),
            mcp=McpRpcs(mcp),
            presence=Presence(allowed=settings.approve_in_person),
        )
        with contextlib.closing(SocketTable()) as sockets:
            keeper = office.doorkeeper(sockets=sockets if settings.loopback_identity else None, operator=os.geteuid())
            rates = Rates(writes_per_s=settings.rate_writes, reads_per_s=settings.rate_reads)
            edge = Edge(
                service,
                keeper,
                steps=(*traces, metrics, rates, auditing),
                refusals=(metrics.refused, auditing.refused),
                answers=answer_budget(settings),
                requests=ByteBudget(per_owner=settings.requests_per_owner, floor=settings.requests_per_owner),
            )
            serving = serve(
                edge,
                listening=places,
                credentials=server_certificate(settings),
                directory=settings.data_dir / "server" / "run",
                settings=front_settings(),
                undrained=stop.leave,
            )
            async with (
                mcp.open(edge) as agents,
                serving as door,
                connect.serve(
                    edge,
                    path=settings.data_dir / "server" / "k8e.sock",
                    bounds=connect_bounds(),
                    undrained=stop.leave,
                ) as socket,
                numbers(settings, metrics, engine) as page,
                asyncio.TaskGroup() as group,
            ):
                for number, bound in enumerate(door.bound, start=1):
                    doors["grpc" if number == 1 else f"grpc-{number}"] = f"grpcs://{bound.from_here()}"
                doors["connect"] = socket
                if page:
                    doors["metrics"] = page
                renewing = group.create_task(renew(settings, door.renew), name="server certificate")
                announce_authority(settings, office.authority, str(door.bound[0].from_here()))
                with published(settings, doors):
                    say_ready(engine, doors, office.authority.fingerprint)
                    await stop.asked()
                agents.leave()
                renewing.cancel()
        if stop.destroy:
            await engine.destroy_all()
    log.info("server stopped")


class Stop:
    """The wish to stop, from a signal or from a caller."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.destroy = False
        self.before_leaving: Callable[[], None] = lambda: None
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
            self.before_leaving()
            logging.shutdown()
            os._exit(0)

    async def asked(self) -> None:
        await self._event.wait()


def make_directories(data_dir: Path) -> None:
    """Others may pass through to the CA's certificate; the engine's records are nobody else's."""
    for path, mode in (
        (data_dir, 0o755),
        (data_dir / "server", 0o755),
        (data_dir / "server" / "tls", 0o755),
        (data_dir / "engine", 0o700),
    ):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)


def stage_skill(directory: Path) -> None:
    """The skill of this version where people and installers of agents find it; no server fails for want of it."""
    try:
        if stage(directory):
            log.info("skill staged", extra={"path": str(directory)})
    except (OSError, K8eError) as error:
        log.warning("cannot stage the skill", extra={"path": str(directory), "reason": str(error)})


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Be the one server of a data directory, and show it."""
    with locks.private(data_dir / "engine" / "lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                f"another server (pid {file.read().strip()}) uses {data_dir}: "
                "stop it with `k8e server stop`, or choose another --data-dir"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        # One that died has left it: it must not look as if we were ready.
        (data_dir / "server" / "server.json").unlink(missing_ok=True)
        with locks.show(data_dir / "server" / "lock"):
            yield


@contextlib.contextmanager
def published(settings: ServerSettings, doors: Mapping[str, str]) -> Iterator[None]:
    """Tell clients on this machine where we are, while we are there, and how to start us again.

    One that dies leaves both files, one that is stopped only the second: whoever stopped it does not want it back at once.
    """
    places = settings.data_dir / "server" / "server.json"
    again = settings.data_dir / "server" / "settings.json"
    how = {"settings": dict(settings.given), "is_autostarted": AUTOSTARTED in os.environ}
    whole.replace(again, json.dumps(how).encode() + b"\n", mode=0o600)
    whole.replace(places, json.dumps({"pid": os.getpid(), "doors": dict(doors)}).encode() + b"\n", mode=0o644)
    try:
        yield
    finally:
        places.unlink(missing_ok=True)


@contextlib.contextmanager
def reachable(settings: ServerSettings) -> Iterator[tuple[Listening, ...]]:
    """The addresses of the gRPC door, held from now on. Raises: Conflict with the one that cannot be had, and why."""
    with contextlib.ExitStack() as stack:
        try:
            places = stack.enter_context(listening(Address(host, port) for host, port in settings.addresses()))
        except OSError as error:
            raise Conflict(error.strerror or str(error)) from error
        yield places


def answer_budget(settings: ServerSettings) -> ByteBudget:
    """For the answers of one owner what the operator says; for those of all a part of the host's memory."""
    total = capacity.read(settings.data_dir).memory_bytes // ANSWERS_PART
    return ByteBudget(per_owner=settings.answers_per_owner, total=max(settings.answers_per_owner, total))


def front_settings() -> FrontSettings:
    """As many connections as there are descriptors for, and no more than a machine of this kind needs."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // DESCRIPTORS_EACH
    connections = min(most, FrontSettings().connections)
    return FrontSettings(connections=connections, connections_per_peer=max(1, connections // 2))


def connect_bounds() -> Bounds:
    """A call of the local door has a connection of its own, so one user has as many as a crowd of calls needs."""
    all_of_them = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = all_of_them // (DESCRIPTORS_EACH * USERS)
    return Bounds(
        connections=min(max(most, LEAST_CONNECTIONS), Bounds().connections),
        closing=min(all_of_them // CLOSING_SHARE, Bounds().closing),
    )


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


@contextlib.asynccontextmanager
async def trail(settings: ServerSettings, stop: Stop) -> AsyncIterator[Auditing]:
    """Who did what, written down until the last of it has happened, also where we leave at once."""
    with contextlib.ExitStack() as journals:
        main, busy = (
            journals.enter_context(
                contextlib.closing(Journal(settings.data_dir, name=name, kept_bytes=settings.kept_audit // 2))
            )
            for name in (MAIN, BUSY)
        )
        auditing = Auditing(main, busy=busy, owner_records=settings.audit_records_per_owner)
        journals.callback(auditing.finish)
        stop.before_leaving = journals.close
        yield auditing


@contextlib.asynccontextmanager
async def tracing(settings: ServerSettings) -> AsyncIterator[tuple[Tracing, ...]]:
    """One that traces, where there is a collector to send to. Raises: HostUnsupported without the libraries for it."""
    if not settings.otel_endpoint:
        yield ()
        return
    try:
        from k8e.telemetry import traces
    except ModuleNotFoundError as error:
        raise HostUnsupported(
            f"--otel-endpoint needs more: in k8e's checkout, pip install '.[otel]' ({error})"
        ) from error
    with contextlib.closing(traces.Tracing(traces.exporting(settings.otel_endpoint))) as one:
        yield (one,)


@contextlib.asynccontextmanager
async def numbers(settings: ServerSettings, metrics: Metrics, engine: Engine) -> AsyncIterator[str | None]:
    """The page of numbers, where one is wanted and its address is free."""
    if not settings.metrics_listen:
        yield None
        return
    render = functools.partial(metrics.text, engine.status)
    async with telemetry_page.serve(render, *address(settings.metrics_listen)) as page:
        yield page


def bundle_file(data_dir: Path, registries: Registries) -> Mapping[str, Path]:
    """The certificates that the operator's tools trust, for sandboxes; an old file lives on in those that have it."""
    if registries.ca_bundle is None:
        return {}
    path = data_dir / "server" / "registries.crt"
    whole.replace(path, registries.ca_bundle, mode=0o644)
    return {CA_BUNDLE_AT: path}


def local_settings(
    settings: ServerSettings,
    provisioned: Provisioned,
    *,
    environ: Mapping[str, str] | None = None,
    files: Mapping[str, Path] | None = None,
    apt: AptConfiguration | None = None,
) -> LocalSettings:
    return LocalSettings(
        data_dir=settings.data_dir,
        runsc=Path(provisioned.runsc.path) if provisioned.runsc else None,
        runc=provisioned.runc,
        bundle=provisioned.bundle.path,
        agent_argv=provisioned.bundle.argv,
        agent_env=provisioned.bundle.env,
        site_files=hook.site_files(),
        files=files or {},
        node_tools=provisioned.node,
        pulls=PullSettings(
            registries=settings.image_registries,
            insecure=settings.insecure_registries,
            max_image=settings.max_image,
            kept=settings.kept_images,
            timeout_s=settings.pull_timeout,
            at_once=settings.pulls_at_once,
            per_owner=settings.pulls_per_owner,
            tag_age_s=settings.image_tag_age,
            environ=environ or {},
        ),
        apt=apt,
        reserve_disk=settings.reserve_disk,
        default_disk=session_defaults(settings).limits.disk_bytes,
    )


def pool_settings(settings: ServerSettings) -> PoolSettings:
    if settings.pool_min > settings.pool_max:
        raise HostUnsupported(f"pool_min {settings.pool_min} is more than pool_max {settings.pool_max}")
    return PoolSettings(min=settings.pool_min, max=settings.pool_max)


def engine_settings(settings: ServerSettings, egress: EgressSettings) -> EngineSettings:
    return EngineSettings(
        data_dir=settings.data_dir / "engine",
        default=session_defaults(settings).template(),
        limits=session_defaults(settings).limits,
        quotas=Quotas(
            sessions=settings.sessions_per_owner,
            workspaces=settings.workspaces_per_owner,
            runs_per_session=settings.runs_per_session,
            terminals_per_session=settings.terminals_per_session,
            execs_per_session=settings.commands_per_session,
            ports_per_session=settings.ports_per_session,
            labels_per_session=settings.labels_per_session,
            share=Share(
                cpus=settings.cpus_per_owner or None,
                memory_bytes=settings.memory_per_owner or None,
                disk_bytes=settings.disk_per_owner or None,
            ),
        ),
        ceilings=session_ceilings(settings),
        reserve_memory=settings.reserve_memory,
        kept=KeptLimits(
            runs_per_session=settings.kept_runs_per_session,
            output_per_session=settings.kept_output_per_session,
            output_per_owner=settings.kept_output_per_owner,
            transcript_per_session=settings.kept_transcript_per_session,
            events_per_session=settings.kept_events_per_session,
            events_per_owner=settings.kept_events_per_owner,
            events_age_s=settings.kept_events_age,
        ),
        egress=egress,
        gates=gates.parse(settings.gates),
    )


def egress_settings(
    settings: ServerSettings, registries: Registries, apt: AptConfiguration | None = None
) -> EgressSettings:
    """The operator's registries and code hosts for everybody, and what else the operator lists."""
    listed = tuple(entries.parse(entry) for entry in settings.default_hosts)
    return EgressSettings(
        rules=(*registries.hosts, *(apt.hosts if apt else ()), *EgressSettings().rules, *listed),
        allow_open=settings.allow_open_network,
        env=registries.env,
        ca_bundle=registries.ca_bundle,
    )


def session_ceilings(settings: ServerSettings) -> Ceilings:
    return Ceilings(
        cpus=settings.max_cpu or None,
        memory_bytes=settings.max_memory or None,
        processes=settings.max_processes or None,
        disk_bytes=settings.max_disk or None,
        output_bytes=settings.max_output,
        run_output_bytes=settings.max_run_output,
        connections=settings.max_connections,
        network_bytes_per_s=settings.max_network_rate,
        command_timeout_s=settings.max_command_timeout,
        ttl_s=settings.max_ttl,
        idle_timeout_s=settings.max_idle,
    )


def session_defaults(settings: ServerSettings) -> SessionSpec:
    """What a session gets that asks for nothing; on a small host, or below a low ceiling, less than usual."""
    limits = Limits(cpus=settings.default_cpu, memory_bytes=settings.default_memory, disk_bytes=settings.default_disk)
    most = ceilings.fitted(session_ceilings(settings), capacity.read(settings.data_dir))
    return SessionSpec(
        runtime=Runtime(settings.default_runtime),
        image=settings.default_image,
        limits=ceilings.clipped(limits, most),
    )


def facts(
    settings: ServerSettings, doors: Mapping[str, str], stop: Stop, fingerprint: str, egress: EgressSettings
) -> ServerFacts:
    return ServerFacts(
        pid=os.getpid(),
        data_dir=str(settings.data_dir),
        version=__version__,
        doors=lambda: doors,
        ca_fingerprint=fingerprint,
        stop=stop.ask,
        default_hosts=tuple(dict.fromkeys(map(entries.text, egress.rules))),
        max_mcp_chars=settings.max_mcp_chars,
    )


def say_ready(engine: Engine, doors: Mapping[str, str], fingerprint: str) -> None:
    status = engine.status()
    available = [name for name, each in status.runtimes.items() if each.available]
    log.info(
        "server ready",
        extra={
            "doors": dict(doors),
            "runtimes": available,
            "sessions": status.sessions,
            "ca_sha256": fingerprint,
        },
    )
    if Runtime.GVISOR not in available:
        log.warning("gVisor is not available; `container` is a weaker boundary and is never chosen by itself")
