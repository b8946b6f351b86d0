"""A driver whose sandbox has no overlay on the host and no socket in a shared directory has all that the others have."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
import signal
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.errors import HostUnsupported, SandboxFailed, SandboxLost
from k8e.lifecycle import Phase
from k8e.model import MIB, Availability, Death, Runtime, SandboxId, SessionSpec, Template
from k8e.server import local_settings
from k8e.settings import ServerSettings
from k8e.setup.provision import Provisioned
from k8e.substrate.local import record
from k8e.substrate.local.host import mount
from k8e.substrate.local.host.cgroup import SandboxGroup
from k8e.substrate.local.host.process import Process
from k8e.substrate.local.layout import Layout, SandboxPaths
from k8e.substrate.local.machine import LocalMachine
from k8e.substrate.local.network import NoNetwork
from k8e.substrate.local.runtimes.driver import Blueprint, LocalSandbox
from k8e.substrate.local.settings import LocalSettings
from k8e.wire.aio import Credentials, Link
from tests.support.cells import OWNER, Cell, open_cell
from tests.support.credentials import CREDENTIALS
from tests.support.leaks import Lend
from tests.support.port_driver import PortDriver
from tests.support.prepared_images import use_prepared_images
from tests.support.sandbox_traces import is_gone, sandbox_traces
from tests.support.substrates import over

pytestmark = pytest.mark.anyio

TIMEOUT_S = 60.0
RUNTIME = PortDriver.runtime
TEMPLATE = Template(runtime=RUNTIME, disk_bytes=64 * MIB)


@pytest.fixture(scope="module")
def settings(lend: Lend, host: Provisioned) -> LocalSettings:
    """One directory for all: what the first sandbox of a directory needs is made there once, and takes seconds."""
    data_dir = lend("another-driver")
    use_prepared_images(data_dir)
    return local_settings(ServerSettings(data_dir=data_dir), dataclasses.replace(host, runsc=None, runc=None))


@pytest.fixture
def driver(settings: LocalSettings) -> PortDriver:
    return PortDriver(settings.data_dir / "ports")


@pytest.fixture
def machine(settings: LocalSettings, driver: PortDriver) -> LocalMachine:
    return LocalMachine(settings, more_drivers=[driver])


@asynccontextmanager
async def _engine(machine: LocalMachine) -> AsyncIterator[Engine]:
    async with Engine.open(EngineSettings(data_dir=machine.data_dir), over(machine)) as engine:
        yield engine


@pytest.fixture
async def engine(machine: LocalMachine) -> AsyncIterator[Engine]:
    async with _engine(machine) as engine:
        yield engine
        await engine.destroy_all()


def _sandbox(cell: Cell) -> SandboxId:
    sandbox = cell.engine.get_session(OWNER, cell.id).sandbox
    assert sandbox is not None
    return sandbox


def _kill(machine: LocalMachine, sandbox: SandboxId) -> None:
    known = record.load(Layout(machine.data_dir).sandbox(sandbox))
    assert known is not None
    os.kill(known.pid, signal.SIGKILL)


async def test_commands_run_in_its_sandbox_and_it_goes_without_a_trace(
    engine: Engine, machine: LocalMachine, driver: PortDriver
) -> None:
    async with open_cell(engine, RUNTIME) as cell:
        assert (await cell.sh("cat", stdin=b"in")).stdout == b"in"
        assert (await cell.py("import sys; print(sys.prefix)")).stdout == b"/opt/venv\n", (
            "its image is what was asked for"
        )
        await cell.write("/workspace/file", b"content")
        assert await cell.read("/workspace/file") == b"content"
        sandbox = _sandbox(cell)
        assert sandbox_traces(machine.data_dir, sandbox)["processes"], "the control: it is there"
        assert driver.port(sandbox).is_socket(), "the control: and so is its port"
    assert is_gone(machine.data_dir, sandbox)
    assert not driver.port(sandbox).exists()
    assert await machine.survivors() == frozenset()


async def test_the_host_has_no_overlay_and_no_socket_in_its_directory(engine: Engine, machine: LocalMachine) -> None:
    async with open_cell(engine, RUNTIME) as cell:
        root = Layout(machine.data_dir).sandbox(_sandbox(cell)).root
        assert (root / "boot").exists(), "the control: it is its directory"
        assert [entry.fstype for entry in mount.mounts_under(root) if entry.fstype == "overlay"] == []
        assert [path for path in root.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)] == []


async def test_its_death_is_told_with_the_cause_that_its_driver_names(engine: Engine, machine: LocalMachine) -> None:
    async with open_cell(engine, RUNTIME) as cell, open_cell(engine, RUNTIME) as neighbour:
        sandbox = _sandbox(cell)
        assert machine.alive(sandbox), "the control"
        async with asyncio.timeout(TIMEOUT_S):
            _kill(machine, sandbox)
            assert (await machine.death(sandbox)).detail == "its monitor ended"
            assert not machine.alive(sandbox)
            while engine.get_session(OWNER, cell.id).phase is not Phase.FAILED:
                await asyncio.sleep(0.01)
        with pytest.raises(SandboxLost):
            await cell.sh("true")
        assert (await neighbour.sh("echo fine")).stdout == b"fine\n"


async def test_the_next_server_takes_it_back(machine: LocalMachine, settings: LocalSettings) -> None:
    async with _engine(machine) as engine:
        view = await engine.create_session(OWNER, SessionSpec(runtime=RUNTIME))
        await Cell(engine, view.session_id).sh("echo kept >/tmp/note")
    successor = LocalMachine(settings, more_drivers=[PortDriver(settings.data_dir / "ports")])
    async with _engine(successor) as engine:
        cell = Cell(engine, view.session_id)
        assert (await cell.sh("cat /tmp/note")).stdout == b"kept\n"
        sandbox = _sandbox(cell)
        await engine.destroy_all()
    assert is_gone(machine.data_dir, sandbox)


async def test_a_workspace_given_at_claim_outlives_its_sandbox(engine: Engine) -> None:
    for expected in (b"", b"first\n"):
        async with open_cell(engine, RUNTIME, tenant="mine") as cell:
            assert (await cell.sh("cat /workspace/note 2>/dev/null")).stdout == expected
            await cell.sh("echo first >/workspace/note")


async def test_what_it_has_elsewhere_is_found_and_removed_by_name(machine: LocalMachine, driver: PortDriver) -> None:
    sandbox = SandboxId(f"t-{secrets.token_hex(6)}")
    assert sandbox not in await machine.survivors(), "the control"
    driver.port(sandbox).touch()
    assert sandbox in await machine.survivors()
    await machine.destroy(sandbox)
    assert not driver.port(sandbox).exists()
    assert sandbox not in await machine.survivors()


async def test_a_sandbox_whose_record_cannot_be_read_is_removed_whole(
    machine: LocalMachine, driver: PortDriver
) -> None:
    sandbox = SandboxId(f"t-{secrets.token_hex(6)}")
    await machine.create(sandbox, TEMPLATE, CREDENTIALS)
    try:
        await (await machine.dial(sandbox, CREDENTIALS)).close()
        assert driver.port(sandbox).is_socket(), "the control"
        Layout(machine.data_dir).sandbox(sandbox).record.write_text("{")
    finally:
        await machine.destroy(sandbox)
    assert is_gone(machine.data_dir, sandbox)
    assert not driver.port(sandbox).exists()


async def test_an_agent_that_cannot_start_leaves_nothing(settings: LocalSettings, driver: PortDriver) -> None:
    broken = dataclasses.replace(settings, agent_argv=("/.k8e/no-such-agent",))
    machine, sandbox = LocalMachine(broken, more_drivers=[driver]), SandboxId(f"t-{secrets.token_hex(6)}")
    with pytest.raises(SandboxFailed, match="no-such-agent"):
        await machine.create(sandbox, TEMPLATE, CREDENTIALS)
    assert is_gone(machine.data_dir, sandbox)
    assert not driver.port(sandbox).exists()


class _Surprising(PortDriver):
    """Raises what a driver should not, at one of its steps."""

    def __init__(self, ports: Path, step: str) -> None:
        super().__init__(ports)
        self.step = step

    def _raise_at(self, step: str) -> None:
        if step == self.step:
            raise subprocess.TimeoutExpired(["monitor"], 5)

    def probe(self) -> Availability:
        self._raise_at("probe")
        return super().probe()

    def build(self, sandbox: LocalSandbox, blueprint: Blueprint) -> Process:
        self._raise_at("build")
        return super().build(sandbox, blueprint)

    def cause_of_death(self, sandbox: LocalSandbox) -> Death:
        self._raise_at("cause of death")
        return super().cause_of_death(sandbox)

    def remove(self, sandbox: SandboxId) -> None:
        if sandbox.startswith("t-"):  # and not an image's build
            self._raise_at("remove")
        super().remove(sandbox)

    def last_words(self, paths: SandboxPaths) -> str:
        if paths.root.name.startswith("t-"):  # and not of an image's build
            self._raise_at("last words")
        return super().last_words(paths)


async def test_a_death_is_told_also_where_its_cause_cannot_be_found(settings: LocalSettings) -> None:
    driver = _Surprising(settings.data_dir / "ports", "cause of death")
    machine = LocalMachine(settings, more_drivers=[driver])
    async with _engine(machine) as engine, open_cell(engine, RUNTIME) as cell, asyncio.timeout(TIMEOUT_S):
        _kill(machine, _sandbox(cell))
        while engine.get_session(OWNER, cell.id).phase is not Phase.FAILED:
            await asyncio.sleep(0.01)
        assert engine.get_session(OWNER, cell.id).detail == "its sandbox died"


@pytest.mark.parametrize("step", ["probe", "build"])
async def test_a_driver_that_raises_when_it_is_tried_is_not_available_and_the_others_are(
    settings: LocalSettings, step: str
) -> None:
    machine = LocalMachine(settings, more_drivers=[_Surprising(settings.data_dir / "ports", step)])
    found = (await machine.capabilities()).runtimes
    assert not found[RUNTIME].available
    assert "TimeoutExpired" in found[RUNTIME].detail
    assert set(Runtime) == set(found)
    assert await machine.survivors() == frozenset()


async def test_a_failed_boot_leaves_nothing_also_where_its_last_words_cannot_be_read(settings: LocalSettings) -> None:
    broken = dataclasses.replace(settings, agent_argv=("/.k8e/no-such-agent",))
    driver, sandbox = _Surprising(settings.data_dir / "ports", "last words"), SandboxId(f"t-{secrets.token_hex(6)}")
    with pytest.raises(subprocess.TimeoutExpired):
        await LocalMachine(broken, more_drivers=[driver]).create(sandbox, TEMPLATE, CREDENTIALS)
    assert is_gone(settings.data_dir, sandbox)
    assert not driver.port(sandbox).exists()


async def test_only_who_makes_the_machine_can_add_a_driver(settings: LocalSettings, driver: PortDriver) -> None:
    """No setting does: what users can choose is what is built in."""
    added, plain = LocalMachine(settings, more_drivers=[driver]), LocalMachine(settings)
    assert (await added.capabilities()).runtimes[RUNTIME].available, "the control"
    found = (await plain.capabilities()).runtimes
    assert not any(each.available for each in found.values())
    assert "not built into this version" in found[RUNTIME].detail
    with pytest.raises(HostUnsupported, match="not built into this version"):
        await plain.create(SandboxId("t-refused"), TEMPLATE, CREDENTIALS)
    assert set(Runtime) == set(found)


class _Attachments(NoNetwork):
    """Knows which sandboxes it was told of; what fails when one is detached fails after that was done."""

    def __init__(self) -> None:
        self._attached: set[SandboxId] = set()
        self.is_failing = False

    async def attach(self, sandbox: SandboxId) -> None:
        self._attached.add(sandbox)

    async def detach(self, sandbox: SandboxId) -> None:
        self._attached.discard(sandbox)
        if self.is_failing:
            raise SandboxFailed("network: detach", "no answer from the daemon")

    async def attached(self) -> frozenset[SandboxId]:
        return frozenset(self._attached)


class _Relayed(_Surprising):
    """Its agent is dialled through a relay that outlives the sandbox: a link that nobody hangs up stays."""

    def __init__(self, ports: Path, step: str) -> None:
        super().__init__(ports, step)
        self.hung_up = asyncio.Event()

    async def dial(self, sandbox: LocalSandbox, credentials: Credentials, *, timeout_s: float) -> Link:
        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answers, questions = await asyncio.open_unix_connection(self.port(sandbox.id))
            async with asyncio.TaskGroup() as both:
                answering = both.create_task(_copy(answers, writer), name="from the agent")
                await _copy(reader, questions)
                self.hung_up.set()
                answering.cancel()
            questions.close()
            writer.close()

        place = self._ports / f"{sandbox.id}.relay"
        relay = await asyncio.start_unix_server(carry, place)
        try:
            return await Link.dial(place, credentials, timeout_s=timeout_s)
        finally:
            relay.close()
            place.unlink(missing_ok=True)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)


@pytest.fixture
def network() -> _Attachments:
    return _Attachments()


@pytest.mark.parametrize("is_network_failing", [False, True], ids=["alone", "and so does its network"])
async def test_where_a_driver_cannot_remove_the_rest_of_the_sandbox_goes(
    settings: LocalSettings, network: _Attachments, is_network_failing: bool
) -> None:
    driver, sandbox = _Relayed(settings.data_dir / "ports", "remove"), SandboxId(f"t-{secrets.token_hex(6)}")
    machine = LocalMachine(settings, network, more_drivers=[driver])
    await machine.create(sandbox, TEMPLATE, CREDENTIALS)
    assert await network.attached() == {sandbox}, "the control"
    assert not driver.hung_up.is_set(), "the control"
    network.is_failing = is_network_failing
    wanted = "TimeoutExpired.*no answer from the daemon" if is_network_failing else "TimeoutExpired"
    with pytest.raises(SandboxFailed, match=wanted):
        await machine.destroy(sandbox)
    assert is_gone(machine.data_dir, sandbox)
    assert await network.attached() == frozenset()
    async with asyncio.timeout(TIMEOUT_S):
        await driver.hung_up.wait()
    assert await machine.survivors() == {sandbox}, "what its driver has elsewhere is still there"
    driver.step, network.is_failing = "", False
    await machine.destroy(sandbox)
    assert await machine.survivors() == frozenset()


async def test_a_sandbox_whose_processes_cannot_be_ended_keeps_its_network(
    settings: LocalSettings, network: _Attachments, driver: PortDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address would be the next sandbox's, and it would go on using it."""
    machine, sandbox = LocalMachine(settings, network, more_drivers=[driver]), SandboxId(f"t-{secrets.token_hex(6)}")
    await machine.create(sandbox, TEMPLATE, CREDENTIALS)

    def survive(_: SandboxGroup) -> None:
        raise TimeoutError("processes survive SIGKILL")

    with monkeypatch.context() as patched:
        patched.setattr(SandboxGroup, "kill", survive)
        with pytest.raises(SandboxFailed, match="survive SIGKILL"):
            await machine.destroy(sandbox)
    assert machine.alive(sandbox)
    assert await network.attached() == {sandbox}
    await machine.destroy(sandbox)
    assert await network.attached() == frozenset()
    assert is_gone(machine.data_dir, sandbox)
