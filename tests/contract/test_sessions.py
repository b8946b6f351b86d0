"""Sessions, on every runtime: warm and cold, short-lived and shared, alone and with children."""

from __future__ import annotations

import asyncio

import pytest

from k8e.engine import boxes
from k8e.engine.engine import Engine
from k8e.errors import Conflict, Denied, HostUnsupported, NotFound
from k8e.lifecycle import Phase
from k8e.model import MIB, Command, Limits, Reason, Runtime, SessionSpec, Shell
from tests.support.cells import OWNER, Cell, CellFactory

pytestmark = pytest.mark.anyio


@pytest.mark.not_bare
async def test_a_fresh_session_has_what_programs_expect(cell: Cell) -> None:
    result = await cell.sh(
        "pwd; id -u; for d in /workspace /tmp $HOME; do echo x > $d/probe && cat $d/probe; done; "
        "command -v python3; for tool in bash sh git tar find stat; do command -v $tool; done | wc -l"
    )
    lines = result.stdout.decode().split()
    assert lines[:5] == ["/workspace", "0", "x", "x", "x"]
    assert lines[5] == "/opt/venv/bin/python3"
    assert lines[-1] == "6"


@pytest.mark.not_bare
async def test_an_installed_package_can_be_imported(cell: Cell, wheel: bytes) -> None:
    await cell.write("/tmp/hello_wheel-1.0-py3-none-any.whl", wheel)
    install = await cell.sh("pip install --no-index /tmp/hello_wheel-1.0-py3-none-any.whl", timeout_s=120.0)
    assert install.outcome.exit_code == 0, install
    assert (await cell.py("import hello_wheel; print(hello_wheel.WORD)")).stdout == b"hello\n"


async def test_the_workspace_is_gone_with_the_session(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime, session_id="same-name") as first:
        await first.write("/workspace/file", b"x")
    async with cells(runtime, session_id="same-name") as second:
        with pytest.raises(NotFound):
            await second.read("/workspace/file")


async def test_a_tenants_workspace_is_found_again(runtime: Runtime, cells: CellFactory, engine: Engine) -> None:
    tenant = f"project-{runtime}"
    async with cells(runtime, tenant=tenant) as first:
        await first.sh("echo kept > file; mkdir -p deep/er; echo $(pwd)")
        with pytest.raises(Conflict):
            await engine.delete_workspace(OWNER, tenant)
    assert tenant in [view.tenant for view in engine.list_workspaces(OWNER)]
    async with cells(runtime, tenant=tenant) as second:
        assert (await second.sh("cat file; ls -d deep/er; id -u; stat -c %u file")).stdout == b"kept\ndeep/er\n0\n0\n"
    await engine.delete_workspace(OWNER, tenant)
    async with cells(runtime, tenant=tenant) as third:
        assert (await third.sh("ls -A | grep -v lost+found")).stdout == b""
    await engine.delete_workspace(OWNER, tenant)


async def test_parent_and_child_share_a_coherent_workspace(cell: Cell) -> None:
    child = Cell(cell.engine, (await cell.engine.run_subagent(OWNER, cell.id)).session_id)
    await cell.sh("echo from-parent > /workspace/a")
    assert (await child.sh("cat /workspace/a; echo from-child > /workspace/b")).stdout == b"from-parent\n"
    assert (await cell.sh("cat /workspace/b")).stdout == b"from-child\n"
    await cell.sh("echo changed > /workspace/b; rm /workspace/a")
    assert (await child.sh("cat /workspace/b; ls /workspace")).stdout.startswith(b"changed\nb\n")
    await cell.sh("echo private > /tmp/p; sleep 8001 >/dev/null 2>&1 &")
    look = await child.sh("cat /tmp/p /proc/[0-9]*/comm 2>/dev/null")
    assert b"private" not in look.stdout
    assert b"sleep" not in look.stdout


async def test_depth_is_one_and_children_end_with_their_parent(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime) as parent:
        child = await parent.engine.run_subagent(OWNER, parent.id)
        other = await parent.engine.run_subagent(OWNER, parent.id)
        with pytest.raises(Denied, match="depth 1"):
            await parent.engine.run_subagent(OWNER, child.session_id)
        await parent.engine.destroy_session(OWNER, child.session_id)
        assert (await parent.sh("echo alive")).stdout == b"alive\n"
        await parent.engine.destroy_session(OWNER, parent.id)
        with pytest.raises(NotFound):
            parent.engine.get_session(OWNER, other.session_id)


@pytest.mark.not_bare
async def test_a_childs_files_count_to_the_parents_disk(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime, limits=Limits(disk_bytes=128 * MIB)) as parent:
        child = Cell(parent.engine, (await parent.engine.run_subagent(OWNER, parent.id)).session_id)
        filled = await child.sh("dd if=/dev/zero of=/workspace/big bs=1M count=200 2>&1")
        assert b"No space left" in filled.stdout
        assert b"No space left" in (await parent.sh("dd if=/dev/zero of=/workspace/more bs=1M count=20 2>&1")).stdout


async def _until_warm(engine: Engine) -> None:
    """Until a sandbox like the default is ready: after other tests there may be some of other kinds."""
    template = SessionSpec().template()
    while template not in (pool := engine.status().pool) or not pool[template].ready:
        await asyncio.sleep(0.01)


async def test_the_second_claim_of_a_ready_pool_is_warm(engine: Engine) -> None:
    await _until_warm(engine)
    view = await engine.create_session(OWNER, SessionSpec())
    assert view.warm
    await engine.destroy_session(OWNER, view.session_id)


async def test_session_options_do_not_make_it_cold(engine: Engine) -> None:
    await _until_warm(engine)
    spec = SessionSpec(env={"A": "b"}, tenant="warm-tenant", limits=Limits(cpus=0.5, processes=64, ttl_s=60))
    view = await engine.create_session(OWNER, spec)
    assert view.warm
    result = await engine.exec(OWNER, view.session_id, Command(what=Shell("echo $A")))
    assert result.stdout == b"b\n"
    await engine.destroy_session(OWNER, view.session_id)
    await engine.delete_workspace(OWNER, "warm-tenant")


async def test_more_claims_than_members_all_succeed(runtime: Runtime, engine: Engine) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(engine.create_session(OWNER, SessionSpec(runtime=runtime))) for _ in range(6)]
    views = [task.result() for task in tasks]
    assert len({view.session_id for view in views}) == 6
    for view in views:
        await engine.destroy_session(OWNER, view.session_id)


@pytest.mark.parametrize("runtime", [Runtime.KATA, Runtime.FIRECRACKER])
async def test_a_missing_runtime_is_refused_never_replaced(engine: Engine, runtime: Runtime) -> None:
    with pytest.raises(HostUnsupported, match=f"runtime {runtime} is not available on this host: ."):
        await engine.create_session(OWNER, SessionSpec(runtime=runtime))


async def test_a_lost_sandbox_is_said_to_be_lost(
    runtime: Runtime, cells: CellFactory, kill_sandbox: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer to report a death than a caller would be kept waiting for it.
    monkeypatch.setattr(boxes, "_DYING_S", 60.0)
    async with cells(runtime) as cell:
        running = asyncio.ensure_future(cell.sh("sleep 100"))
        while not await cell.engine.processes(OWNER, cell.id):
            await asyncio.sleep(0.01)
        kill_sandbox(cell)  # type: ignore[operator]  # a plain function of the fixture
        result = await running
        assert result.outcome.reason is Reason.SANDBOX_LOST
        while cell.engine.get_session(OWNER, cell.id).phase is not Phase.FAILED:
            await asyncio.sleep(0.01)
