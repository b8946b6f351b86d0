"""What programs inside reach through the real network, on every runtime: each denial beside the same thing allowed."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from k8e.egress.authority import Authority
from k8e.egress.client import EgressClient
from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.model import (
    MIB,
    Argv,
    Code,
    Command,
    Denial,
    EgressMode,
    Language,
    Limits,
    Outcome,
    Runtime,
    SessionSpec,
    Verdict,
)
from k8e.setup.provision import Provisioned
from k8e.substrate.local.disks import Disks
from k8e.substrate.local.idmaps import IdMaps
from k8e.substrate.local.layout import SandboxPaths
from k8e.substrate.local.runtimes.gvisor import Gvisor
from tests.support.cells import OWNER, Cell, CellFactory
from tests.support.engines import machine_for
from tests.support.networked import HTTPS, TALK, World, serve_files
from tests.support.substrates import over
from tests.support.upstreams import Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.not_bare]

_PATIENCE_S = 60.0
_INSTALL_S = 100.0

_SAY = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as s:
    s.sendall(b"hello")
    print(s.recv(5).decode())
"""
_HOLD = f"""
import socket
s = socket.create_connection(("allowed.example", {TALK}), timeout=60)
s.sendall(b"x"); s.recv(1); print("open", flush=True)
s.settimeout(None)
try:
    print("closed" if not s.recv(1) else "data")
except ConnectionResetError:
    print("reset")
"""


def _say(host: str, port: int = TALK) -> Command:
    return Command(what=Argv(("python3", "-c", _SAY, host, str(port))))


async def _reaches(cell: Cell, host: str, port: int = TALK) -> bool:
    return (await cell.exec(_say(host, port))).stdout == b"hello\n"


async def test_an_allowed_name_is_reached_and_another_fails_fast_and_is_told(reaching: Cell) -> None:
    fine = await reaching.exec(_say("allowed.example"))
    assert (fine.stdout, fine.egress_denied) == (b"hello\n", ())
    for _ in range(2):  # the second command is told as well, however soon it comes
        missed = await reaching.exec(_say("other.example"))
        assert missed.outcome.exit_code == 1
        assert b"gaierror" in missed.stderr
        assert missed.egress_denied == (Denial("other.example", 0, "not on the session's list"),)


async def test_an_added_host_works_at_once(reaching: Cell) -> None:
    assert not await _reaches(reaching, "other.example")
    await reaching.engine.update_hosts(OWNER, reaching.id, add=[f"other.example:{TALK}"])
    assert await _reaches(reaching, "other.example")


async def test_a_gvisor_without_a_stack_of_its_own_uses_the_namespaces(
    world: World,
    networked: CellFactory,
    far: Upstream,
    host: Provisioned,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.names({"allowed.example": far.address, "other.example": far.address})
    assert host.runsc is not None
    older, argv = Gvisor(Path(host.runsc.path), Disks(tmp_path), IdMaps()), Gvisor.argv
    assert older.fall_back()

    def as_the_older(_driver: Gvisor, paths: SandboxPaths, *, has_network: bool) -> list[str]:
        return argv(older, paths, has_network=has_network)

    monkeypatch.setattr(Gvisor, "argv", as_the_older)
    own = Limits(memory_bytes=384 * MIB)  # a template of its own, so that no sandbox of another test is claimed
    async with networked(Runtime.GVISOR, allowed_hosts=(f"allowed.example:{TALK}",), limits=own) as cell:
        assert b"gVisor" in (await cell.sh("dmesg")).stdout
        assert await _reaches(cell, "allowed.example")
        assert not await _reaches(cell, "other.example")
        assert not await _reaches(cell, far.address)


async def test_a_removed_hosts_open_connection_is_cut(reaching: Cell) -> None:
    engine = reaching.engine
    await engine.update_hosts(OWNER, reaching.id, add=[f"other.example:{TALK}"])
    stream = await engine.open_exec(OWNER, reaching.id, Command(what=Code(Language.PYTHON, _HOLD)))
    said = b""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            async for item in stream:
                if isinstance(item, Outcome):
                    break
                said += item.payload
                if said == b"open\n":
                    await engine.update_hosts(OWNER, reaching.id, remove=[f"other.example:{TALK}"])
                    assert await _reaches(reaching, "allowed.example"), "the control: its own host stays"
                    await engine.update_hosts(OWNER, reaching.id, remove=[f"allowed.example:{TALK}"])
    finally:
        await stream.close()
    assert said == b"open\nreset\n"


async def test_the_port_is_part_of_the_entry(reaching: Cell, far: Upstream) -> None:
    far.echo(TALK + 1)
    missed = await reaching.exec(_say("allowed.example", TALK + 1))
    assert missed.stdout == b""
    assert [(each.host, each.port) for each in missed.egress_denied] == [("allowed.example", TALK + 1)]
    await reaching.engine.update_hosts(OWNER, reaching.id, add=[f"allowed.example:{TALK + 1}"])
    assert await _reaches(reaching, "allowed.example", TALK + 1)


async def test_an_address_is_reached_only_as_a_listed_network(reaching: Cell, far: Upstream) -> None:
    missed = await reaching.exec(_say(far.address))
    assert (missed.stdout, [each.host for each in missed.egress_denied]) == (b"", [far.address])
    await reaching.engine.update_hosts(OWNER, reaching.id, add=[f"{far.address}/32:{TALK}"])
    assert await _reaches(reaching, far.address)


async def test_without_a_network_nothing_is_reached(runtime: Runtime, networked: CellFactory, reaching: Cell) -> None:
    async with networked(runtime, network=EgressMode.NONE) as closed:
        missed = await closed.exec(_say("allowed.example"))
        assert missed.egress_denied[0].reason == "this session has no network"
        assert not missed.stdout
    assert await _reaches(reaching, "allowed.example")


async def test_a_child_reaches_what_its_parent_does(reaching: Cell) -> None:
    child = Cell(reaching.engine, (await reaching.engine.run_subagent(OWNER, reaching.id)).session_id)
    assert await _reaches(child, "allowed.example")
    assert not await _reaches(child, "other.example")


async def test_background_runs_and_streams_tell_what_they_missed(reaching: Cell) -> None:
    engine, command = reaching.engine, _say("other.example")
    run = await engine.start_run(OWNER, reaching.id, command)
    items = [item async for item in engine.open_run(OWNER, run.run_id)]
    assert isinstance(items[-1], Outcome)
    missed = (Denial("other.example", 0, "not on the session's list"),)
    assert (await engine.poll_run(OWNER, run.run_id)).egress_denied == missed
    stream = await engine.open_exec(OWNER, reaching.id, command)
    async for _ in stream:
        pass
    assert stream.denied == missed


async def test_every_decision_can_be_seen_with_its_rule_and_bytes(reaching: Cell, far: Upstream) -> None:
    entry = f"allowed.example:{TALK}"
    following = reaching.engine.egress(OWNER, reaching.id, follow=True)
    assert await _reaches(reaching, "allowed.example")
    async with asyncio.timeout(_PATIENCE_S):
        decisions = []
        async for decision in following:
            decisions.append(decision)
            if decision.verdict is Verdict.CLOSED:
                break
    named = [each for each in decisions if each.protocol != "dns"]
    assert [(each.verdict, each.name, each.port, each.rule) for each in named] == [
        (Verdict.ALLOWED, "allowed.example", TALK, entry),
        (Verdict.CLOSED, "allowed.example", TALK, entry),
    ]
    assert (named[-1].address, named[-1].bytes_sent, named[-1].bytes_received) == (far.address, 5, 5)
    rows = [json.loads(row) for row in (await reaching.engine.events(OWNER, reaching.id)).events]
    closed = next(row for row in rows if row["event"] == "egress.closed")
    assert (closed["name"], closed["rule"], closed["bytes_received"]) == ("allowed.example", entry, 5)


async def test_git_clones_over_https_with_only_the_default_list(
    runtime: Runtime, networked: CellFactory, far: Upstream, world: World, tmp_path: Path
) -> None:
    authority = Authority.new()
    _repository(tmp_path)
    serve_files(far, HTTPS, tmp_path, authority.context("github.com"))
    world.names({"github.com": far.address, "other.example": far.address})
    async with networked(runtime, env={"GIT_SSL_CAINFO": "/workspace/ca.pem"}) as cell:
        await cell.write("/workspace/ca.pem", authority.certificate.encode())
        cloned = await cell.sh("git clone -q https://github.com/hello.git && cat hello/README", timeout_s=_INSTALL_S)
        assert cloned.stdout == b"hello\n", cloned
        missed = await cell.sh("git clone -q https://other.example/hello.git elsewhere")
        assert missed.outcome.exit_code == 128
        assert [each.host for each in missed.egress_denied] == ["other.example"]


async def test_a_changed_list_is_still_in_force_after_a_restart(
    runtime: Runtime, host: Provisioned, data_dir: Path, far: Upstream
) -> None:
    settings = EngineSettings(data_dir=data_dir / "engine")
    async with EgressClient.open(data_dir) as network:
        async with Engine.open(settings, over(machine_for(data_dir, host, network))) as engine:
            session = await engine.create_session(OWNER, SessionSpec(runtime=runtime))
            cell = Cell(engine, session.session_id)
            assert not await _reaches(cell, far.address)
            await engine.update_hosts(OWNER, cell.id, hosts=[f"{far.address}:{TALK}"])
            assert await _reaches(cell, far.address)
        async with Engine.open(settings, over(machine_for(data_dir, host, network))) as engine:
            cell = Cell(engine, session.session_id)
            assert engine.get_session(OWNER, cell.id).allowed_hosts == (f"{far.address}/32:{TALK}",)
            assert await _reaches(cell, far.address)
            await engine.update_hosts(OWNER, cell.id)
            missed = await cell.exec(_say(far.address))
            assert [each.host for each in missed.egress_denied] == [far.address]
            await engine.destroy_all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("install", "use"),
    [
        ("pip install -q requests", "python3 -c 'import requests; print(requests.__name__)'"),
        ("npm install --silent is-odd", "node -p 'require(\"is-odd\")(3)'"),
    ],
    ids=["pip", "npm"],
)
async def test_real_packages_with_dependencies_install_with_only_the_default_list(
    runtime: Runtime, networked: CellFactory, install: str, use: str
) -> None:
    async with networked(runtime) as cell:
        installed = await cell.sh(install, timeout_s=_INSTALL_S)
        assert installed.outcome.exit_code == 0, installed
        assert (await cell.sh(use)).stdout in (b"requests\n", b"true\n")


@pytest.mark.slow
async def test_pip_install_by_name(runtime: Runtime, networked: CellFactory) -> None:
    async with networked(runtime) as cell:
        done = await cell.engine.pip_install(OWNER, cell.id, ["idna>=3,<4"])
        assert done.outcome.exit_code == 0, done
        assert (await cell.py("import idna; print(idna.__name__)")).stdout == b"idna\n"
    async with networked(runtime, allowed_hosts=("nothing.example",)) as closed:
        missed = await closed.engine.pip_install(OWNER, closed.id, ["idna>=3,<4"])
        assert missed.outcome.exit_code != 0
        assert missed.egress_denied


def _repository(root: Path) -> None:
    """A bare repository that any web server can give out."""
    work, bare = root / "work", root / "hello.git"
    work.mkdir()
    (work / "README").write_text("hello\n")
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    for argv in (
        ["git", "-C", str(work), "init", "-q"],
        ["git", "-C", str(work), "add", "README"],
        ["git", "-C", str(work), *identity, "commit", "-q", "-m", "hello"],
        ["git", "clone", "-q", "--bare", str(work), str(bare)],
        ["git", "-C", str(bare), "update-server-info"],
    ):
        subprocess.run(argv, check=True, capture_output=True)
