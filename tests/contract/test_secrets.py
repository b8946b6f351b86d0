"""Secrets as environment variables, on every runtime: there when a command runs, and nowhere else."""

from __future__ import annotations

import logging
import os
import uuid
from pathlib import Path

import pytest

from k8e.engine.engine import Engine
from k8e.errors import InvalidSpec
from k8e.model import Code, Command, Language, OwnerId, Runtime, SecretRef, Shell, TerminalSize
from tests.support.cells import OWNER, Cell, CellFactory
from tests.support.written import contents

pytestmark = pytest.mark.anyio

VALUE = f"nobody-may-ever-find-{uuid.uuid4()}"
"""This run's own: another one on this machine shows its value to its own commands."""
REFS = (SecretRef(secret_name="contract", key="token", env_var="TOKEN"),)


@pytest.fixture
async def secret(engine: Engine) -> str:
    await engine.set_secret(OWNER, "contract", "token", VALUE.encode())
    return VALUE


async def test_commands_get_the_value_at_every_start(
    runtime: Runtime, cells: CellFactory, engine: Engine, secret: str
) -> None:
    async with cells(runtime, env={"PLAIN": "1"}, secret_refs=REFS) as cell:
        assert (await cell.sh('printf "$PLAIN $TOKEN"')).stdout == f"1 {VALUE}".encode()
        assert (await cell.py("import os; print(os.environ['TOKEN'])")).stdout == f"{VALUE}\n".encode()
        assert (await cell.sh('printf "$TOKEN"', env={"TOKEN": "mine"})).stdout == b"mine"
        await engine.set_secret(OWNER, "contract", "token", b"changed since")
        assert (await cell.sh('printf "$TOKEN"')).stdout == b"changed since"


async def test_a_sub_agent_has_its_parents_references(
    runtime: Runtime, cells: CellFactory, engine: Engine, secret: str
) -> None:
    async with cells(runtime, secret_refs=REFS) as cell:
        child = Cell(engine, (await engine.run_subagent(OWNER, cell.id)).session_id)
        assert (await child.sh('printf "$TOKEN"')).stdout == VALUE.encode()


async def test_a_missing_secret_is_refused_at_the_beginning_and_at_every_command(
    runtime: Runtime, cells: CellFactory, engine: Engine, secret: str
) -> None:
    missing = SecretRef(secret_name="contract", key="other", env_var="OTHER")
    with pytest.raises(InvalidSpec, match="contract:other"):
        async with cells(runtime, secret_refs=(*REFS, missing)):
            pass
    async with cells(runtime, secret_refs=REFS) as cell:
        assert (await cell.sh("true")).outcome.exit_code == 0
        await engine.delete_secret(OWNER, "contract", "token")
        with pytest.raises(InvalidSpec, match="contract:token"):
            await cell.sh("true")
        with pytest.raises(InvalidSpec, match="contract:token"):
            await engine.start_run(OWNER, cell.id, Command(what=Shell("true")))


async def test_no_reference_reaches_another_owners_secret_or_the_servers_own_files(
    runtime: Runtime, cells: CellFactory, engine: Engine
) -> None:
    await engine.set_secret(OwnerId("somebody-else"), "contract-theirs", "token", b"theirs")
    for name in ("contract-theirs", "../server/secrets.key", "secrets.key", "/etc/shadow"):
        with pytest.raises(InvalidSpec):
            async with cells(runtime, secret_refs=(SecretRef(secret_name=name, key="token", env_var="X"),)):
                pass
    await engine.delete_secret(OwnerId("somebody-else"), "contract-theirs")


async def test_the_value_is_nowhere_but_in_the_command(
    runtime: Runtime,
    cells: CellFactory,
    engine: Engine,
    engine_dir: Path,
    secret: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    marker = "this-is-kept-for-comparison"
    async with cells(runtime, env={"MARKER": marker}, secret_refs=REFS) as cell:
        shown = await cell.sh('echo "$MARKER $TOKEN" ; echo "$TOKEN" >&2')
        assert VALUE.encode() in shown.stdout
        await cell.exec(Command(what=Code(Language.PYTHON, f"import os; print(os.environ['TOKEN'] == {VALUE!r})")))
        run = await engine.start_run(OWNER, cell.id, Command(what=Shell("echo quiet; sleep 100 & wait")))
        terminal = await engine.create_terminal(OWNER, cell.id, argv=["/bin/sh"], size=TerminalSize())
        arguments = _arguments_of_every_process()
        await engine.kill_run(OWNER, run.run_id)
        await engine.start_run(OWNER, cell.id, Command(what=Shell(f"true {VALUE}")))
        runs = repr(engine.list_runs(OWNER, cell.id))
        await engine.destroy_terminal(OWNER, terminal.terminal_id)
        written = _everything_written(engine_dir)
        transcript = (await engine.transcript(OWNER, cell.id)).output
        events = "\n".join((await engine.events(OWNER, cell.id)).events)
        view = repr(engine.get_session(OWNER, cell.id))
    assert marker in transcript
    assert any(marker.encode() in content for content in written.values())
    assert "exec.ended" in events
    assert "TOKEN" in view
    assert "true [secret]" in runs
    assert VALUE not in transcript + events + view + runs + caplog.text
    assert [path for path, content in written.items() if VALUE.encode() in content] == []
    assert b"pytest" in arguments
    assert VALUE.encode() not in arguments


def _everything_written(directory: Path) -> dict[str, bytes]:
    """Every regular file of the server's own: its records, not the inside of sandboxes."""
    every = [Path(place, name) for place, _, names in os.walk(directory) for name in names]
    logs = [path for path in every if path.suffix == ".log"]
    return contents(*directory.glob("*.sqlite*"), directory / "sessions", *logs)


def _arguments_of_every_process() -> bytes:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since
    return b"\n".join(found)
