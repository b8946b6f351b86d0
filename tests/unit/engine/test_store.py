"""The store keeps what it was given, compares versions, shares commits, and says clearly what is wrong with its file."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import k8e.engine
from k8e.engine.records import RUNS, SESSIONS, TERMINALS, RunRecord, TerminalRecord
from k8e.engine.store import Change, Entry, Kind, Log, Store
from k8e.engine.store.sqlite import Contents
from k8e.engine.workspaces import WORKSPACES, WorkspaceView
from k8e.errors import Conflict, K8eError, StoreFailed
from k8e.lifecycle import Phase
from k8e.model import (
    Denial,
    Gates,
    Limits,
    Outcome,
    OwnerId,
    Reason,
    RunId,
    Runtime,
    SandboxId,
    SessionId,
    SessionSpec,
    Status,
    TerminalId,
    WorkspaceId,
)
from tests.support import former_files

pytestmark = pytest.mark.anyio

OWNER = OwnerId("uid:0")
_PATIENCE_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def _workspace(name: str, disk_bytes: int = 1) -> WorkspaceView:
    return WorkspaceView(
        owner=OWNER, tenant=name, workspace=WorkspaceId(f"ws-{name}"), disk_bytes=disk_bytes, last_used=0.0
    )


def _run(session: str, name: str) -> RunRecord:
    return RunRecord(run_id=RunId(name), owner=OWNER, session_id=SessionId(session), started_at=1.0, command="make")


def _kept(store: Store) -> dict[str, int]:
    return {stored.record.tenant: stored.record.disk_bytes for stored in store.load(WORKSPACES)}


async def _try(store: Store, *changes: Change) -> int | K8eError:
    try:
        return await store.commit(*changes)
    except K8eError as error:
        return error


@asynccontextmanager
async def _together(path: Path) -> AsyncIterator[None]:
    """What is committed meanwhile waits for the file, and then shares a transaction."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        await asyncio.sleep(0)
        other.execute("ROLLBACK")


async def test_a_commit_is_there_after_a_restart(path: Path) -> None:
    first = Store(path)
    version = await first.commit(WORKSPACES.put(_workspace("a")))
    first.close()
    second = Store(path)
    (stored,) = second.load(WORKSPACES)
    assert (stored.record, stored.version) == (_workspace("a"), version)
    assert second.get(WORKSPACES, OWNER, "a") == stored
    assert second.get(WORKSPACES, OWNER, "b") is None
    second.close()


async def test_a_version_is_replaced_once(store: Store) -> None:
    first = await store.commit(WORKSPACES.put(_workspace("a"), if_version=0))
    with pytest.raises(Conflict, match="workspace uid:0/a already exists"):
        await store.commit(WORKSPACES.put(_workspace("a", 2), if_version=0))
    second = await store.commit(WORKSPACES.put(_workspace("a", 3), if_version=first))
    assert second > first
    with pytest.raises(Conflict, match="workspace uid:0/a has been changed meanwhile"):
        await store.commit(WORKSPACES.put(_workspace("a", 4), if_version=first))
    with pytest.raises(Conflict, match="has been changed meanwhile"):
        await store.commit(WORKSPACES.delete(OWNER, "a", if_version=first))
    assert _kept(store) == {"a": 3}
    await store.commit(WORKSPACES.delete(OWNER, "a", if_version=second))
    with pytest.raises(Conflict, match="is no longer there"):
        await store.commit(WORKSPACES.put(_workspace("a", 5), if_version=second))
    assert _kept(store) == {}


async def test_of_many_that_replace_one_version_exactly_one_does(store: Store) -> None:
    version = await store.commit(WORKSPACES.put(_workspace("a")))
    tries = [_try(store, WORKSPACES.put(_workspace("a", size), if_version=version)) for size in range(10, 20)]
    results = await asyncio.gather(*tries)
    (won,) = [size for size, result in enumerate(results, 10) if isinstance(result, int)]
    assert _kept(store) == {"a": won}
    assert [type(each) for each in results if not isinstance(each, int)] == [Conflict] * 9


async def test_a_version_is_never_used_again(path: Path) -> None:
    seen: list[int] = []
    for _ in range(3):
        store = Store(path)
        for _ in range(3):
            seen.append(await store.commit(WORKSPACES.put(_workspace("a"), if_version=0)))
            await store.commit(WORKSPACES.delete(OWNER, "a"))
        store.close()
    assert seen == sorted(set(seen))


async def test_versions_grow_also_where_two_processes_write_in_turn(store: Store, path: Path) -> None:
    other = Store(path)
    seen: list[int] = []
    for _ in range(3):
        for each in (store, store, other):
            seen.append(await each.commit(WORKSPACES.put(_workspace("a"))))
            await each.commit(WORKSPACES.delete(OWNER, "a"))
    with store.watch(WORKSPACES) as watch:
        await other.commit(WORKSPACES.put(_workspace("a", 2)))
        known = store.get(WORKSPACES, OWNER, "a")
        assert known is not None
        await store.commit(WORKSPACES.put(_workspace("a", 3)))
        changed = await anext(watch)
    other.close()
    assert seen == sorted(set(seen))
    assert changed.version > known.version > seen[-1]


async def test_a_refused_commit_fails_alone_among_many(store: Store, path: Path) -> None:
    await store.commit(WORKSPACES.put(_workspace("b", 7)))
    async with _together(path):
        asked = [asyncio.ensure_future(_try(store, WORKSPACES.put(_workspace(name), if_version=0))) for name in "abac"]
        await asyncio.sleep(0)
    a, b, again, c = await asyncio.gather(*asked)
    assert isinstance(a, int)
    assert isinstance(b, Conflict)
    assert isinstance(again, Conflict), "of two in one transaction the second sees the first"
    assert isinstance(c, int)
    assert _kept(store) == {"a": 1, "b": 7, "c": 1}


async def test_changes_of_one_commit_come_together_or_not_at_all(store: Store) -> None:
    await store.commit(WORKSPACES.put(_workspace("a")))
    stale = WORKSPACES.put(_workspace("a", 2), if_version=12345)
    with pytest.raises(Conflict):
        await store.commit(WORKSPACES.put(_workspace("x")), RUNS.put(_run("s", "r")), stale)
    assert (_kept(store), store.load(RUNS)) == ({"a": 1}, [])
    version = await store.commit(WORKSPACES.put(_workspace("x")), RUNS.put(_run("s", "r")))
    assert _kept(store) == {"a": 1, "x": 1}
    assert [stored.version for stored in store.load(RUNS)] == [version]


async def test_what_was_deleted_is_not_brought_back_by_a_change_that_comes_late(store: Store) -> None:
    await store.commit(WORKSPACES.replace(_workspace("a")))
    assert _kept(store) == {}
    await store.commit(WORKSPACES.put(_workspace("a")))
    await store.commit(WORKSPACES.replace(_workspace("a", 2)))
    assert _kept(store) == {"a": 2}, "the control"


async def test_what_belongs_to_one_record_is_deleted_with_it_and_nothing_else(store: Store) -> None:
    others = [_run("s2", "a"), _run("s-", "b"), _run('s","', "c"), _run("", "d"), _run("t", "e")]
    await store.commit(*map(RUNS.put, [_run("s", "a"), _run("s", "b"), *others]))
    assert {stored.record.run_id for stored in store.load(RUNS, OWNER, "s")} == {"a", "b"}
    await store.commit(RUNS.delete_under(OWNER, "s"))
    assert {stored.record.session_id for stored in store.load(RUNS)} == {each.session_id for each in others}


async def test_posted_changes_are_written_before_close(path: Path) -> None:
    store = Store(path)
    store.post(WORKSPACES.put(_workspace("later")))
    store.close()
    store = Store(path)
    assert _kept(store) == {"later": 1}
    store.close()


async def test_a_refused_change_that_nobody_waits_for_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(path)
    store.post(WORKSPACES.put(_workspace("a"), if_version=3))
    store.post(WORKSPACES.put(_workspace("b")))
    store.close()
    assert [record.getMessage() for record in caplog.records] == ["a change was not written down"]
    store = Store(path)
    assert _kept(store) == {"b": 1}
    store.close()


async def test_a_change_that_cannot_be_written_fails_alone_and_the_next_one_is_written(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(path.with_name("events.sqlite"))
    for owner in ("\udcff", "a", "\udcff", "b"):  # what is no text for SQLite
        log.append(Entry(at=1.0, owner=owner, session_id="s", kind="k", fields="{}"))
    async with asyncio.timeout(_PATIENCE_S):
        await log.written()
    assert sorted(owner for owner, _, _ in log.sizes()) == ["a", "b"]
    log.close()
    assert [record.getMessage() for record in caplog.records] == ["a change was not written down"] * 2


async def test_a_change_whose_key_cannot_be_written_fails_its_caller(store: Store) -> None:
    broken = Kind("\udcff", WorkspaceView, WORKSPACES.key)
    async with asyncio.timeout(_PATIENCE_S):
        with pytest.raises(StoreFailed, match="UnicodeEncodeError"):
            await store.commit(broken.put(_workspace("a")))
        await store.commit(WORKSPACES.put(_workspace("b")))
    assert _kept(store) == {"b": 1}


async def test_what_is_committed_after_the_end_is_refused(path: Path) -> None:
    store = Store(path)
    store.close()
    async with asyncio.timeout(_PATIENCE_S):
        with pytest.raises(StoreFailed, match="is closed"):
            await store.commit(WORKSPACES.put(_workspace("a")))
    with pytest.raises(StoreFailed, match="is closed"):
        store.post(WORKSPACES.put(_workspace("a")))


def test_a_caller_whose_loop_has_ended_does_not_end_the_writing(path: Path) -> None:
    store = Store(path)

    async def commit_and_leave() -> None:
        commit = asyncio.ensure_future(store.commit(WORKSPACES.put(_workspace("left"))))
        await asyncio.sleep(0)
        assert not commit.done()

    async def commit_the_next() -> None:
        async with asyncio.timeout(_PATIENCE_S):
            await store.commit(WORKSPACES.put(_workspace("next")))

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        asyncio.run(commit_and_leave())
        other.execute("ROLLBACK")
    asyncio.run(commit_the_next())
    assert _kept(store) == {"left": 1, "next": 1}
    store.close()


async def test_a_damaged_file_is_named_with_the_remedy(path: Path) -> None:
    path.write_bytes(b"this is no database at all, but long enough to look at" * 100)
    with pytest.raises(StoreFailed, match=r"damaged.*restore it from a backup"):
        Store(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grown(WorkspaceView):
    colour: str = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shrunk:
    owner: str = OWNER
    tenant: str = "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    owner: str = OWNER
    tenant: str = "a"
    workspace: str = "ws"
    disk_bytes: str = "many"
    last_used: float = 0.0


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (_Grown(owner=OWNER, tenant="a", workspace=WorkspaceId("ws"), disk_bytes=1, last_used=0.0), "'colour' is no"),
        (_Shrunk(), "'disk_bytes' is missing"),
        (_Other(), "disk_bytes: str instead of an integer"),
        (_workspace("b"), "it has the content of uid:0/b"),
    ],
    ids=["a field too many", "a field missing", "another type", "another key"],
)
async def test_a_damaged_record_is_named_with_the_remedy(store: Store, record: object, what: str) -> None:
    await store.commit(WORKSPACES.put(_workspace("fine")))
    assert _kept(store) == {"fine": 1}, "the control"
    written = Kind("workspace", type(record), lambda _record: (OWNER, "a"))
    await store.commit(written.put(record))
    for read in (lambda: store.load(WORKSPACES), lambda: store.get(WORKSPACES, OWNER, "a")):
        with pytest.raises(StoreFailed, match=rf"damaged \(workspace .*{what}.*\): restore it from a backup"):
            read()
    assert store.get(WORKSPACES, OWNER, "fine") is not None


@pytest.mark.parametrize(
    ("contents", "cost"),
    [
        ("engine", "running sandboxes will then be removed"),
        ("approvals", "what waits for an answer is then refused"),
        ("secrets", "every secret must then be set again"),
    ],
)
async def test_the_remedy_says_what_it_costs_to_go_on_without_the_file(
    path: Path, contents: Contents, cost: str
) -> None:
    path.write_bytes(b"this is no database at all, but long enough to look at" * 100)
    with pytest.raises(StoreFailed, match=cost):
        Store(path, contents)


async def test_a_damaged_record_is_left_out_and_logged_where_its_kind_allows_that(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    kind = Kind("workspace", WorkspaceView, WORKSPACES.key, may_miss=lambda fields: fields.get("last_used") == 0.0)
    await store.commit(kind.put(_workspace("fine")))
    await store.commit(Kind("workspace", _Other, lambda _record: (OWNER, "a")).put(_Other()))
    assert [stored.record.tenant for stored in store.load(kind)] == ["fine"]
    (logged,) = [vars(record) for record in caplog.records]
    assert (logged["kind"], logged["key"]) == ("workspace", '["uid:0","a"]')
    assert logged["error"] == "disk_bytes: str instead of an integer"
    await store.commit(Kind("workspace", _Other, lambda _record: (OWNER, "b")).put(_Other(last_used=1.0)))
    with pytest.raises(StoreFailed, match=r"damaged \(workspace .*b.*\)"):
        store.load(kind)


async def test_a_locked_file_is_named_with_the_remedy(store: Store, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreFailed, match="locked by another program"):
        await store.commit(WORKSPACES.put(_workspace("a")))
    other.execute("ROLLBACK")
    other.close()
    await store.commit(WORKSPACES.put(_workspace("a")))


async def test_a_newer_format_is_refused_untouched(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreFailed, match=r"format 99.*run the k8e that wrote it"):
        Store(path)


@pytest.mark.parametrize("format", range(1, len(former_files.ENGINE) + 1))
async def test_a_file_of_every_former_format_is_taken_over_with_what_is_in_it(path: Path, format: int) -> None:
    former_files.write(path, former_files.ENGINE[:format])
    for _ in range(2):  # and once more as a file of today
        store = Store(path)
        _check_taken_over(store, format)
        store.close()


def _check_taken_over(store: Store, format: int) -> None:
    owner, here = OwnerId('cert:Zoë "z"'), SessionId("s")
    parent, child = sorted((each.record for each in store.load(SESSIONS)), key=lambda record: record.sandbox)
    spec = SessionSpec(
        session_id="s",
        tenant="t",
        runtime=Runtime.CONTAINER,
        limits=Limits(cpus=0.5),
        env={"RAW": "\udcff\0"},
        allowed_hosts=("pypi.org",),
    )
    assert (parent.owner, parent.session_id, parent.sandbox, parent.phase) == (owner, here, "sb-2", Phase.ACTIVE)
    assert (parent.spec, parent.parent, parent.workspace, parent.warm) == (spec, None, "ws-1", True)
    times = (parent.created_at, parent.expires_at, parent.idle_timeout_s, parent.last_used)
    assert times == (1763500000.1234567, None, 3600.0, 1763500001.5)
    assert (parent.gateway, parent.epoch) == (("gw-1", 7) if format >= 5 else ("", 0))
    assert (child.session_id, child.sandbox, child.phase) == ("child", SandboxId("sb-3"), Phase.FAILED)
    assert (child.parent, child.workspace, child.warm, child.detail) == (here, None, False, "it died\n")
    assert child.expires_at == 2.5
    runs = {str(each.record.run_id): each.record for each in store.load(RUNS)}
    running = RunRecord(run_id=RunId("run-1"), owner=owner, session_id=here, started_at=1763500002.25, command="")
    killed = Outcome(
        status=Status.FAILED, exit_code=137, signal=9, reason=Reason.KILLED, detail='by "x"', duration_ms=5
    )
    denied = (Denial("a.example", 443, "not on the list"),)
    ended = replace(running, run_id=RunId("run-2"), started_at=3.0, truncated=True, outcome=killed, denied=denied)
    done = Outcome(status=Status.COMPLETED, exit_code=0, duration_ms=5)
    assert runs["run-1"] == running
    assert runs["run-2"] == ended
    assert runs["run-3"] == replace(running, run_id=RunId("run-3"), started_at=4.0, outcome=done)
    assert [each.command for each in runs.values() if each.session_id == "child"] == ["make all"] * (format >= 3)
    (terminal,) = store.load(TERMINALS)
    assert terminal.record == TerminalRecord(terminal_id=TerminalId("term-1"), owner=owner, session_id=here, pid=42)
    workspaces = {each.record.workspace: each.record for each in store.load(WORKSPACES)}
    assert workspaces.pop(WorkspaceId("ws-1")) == WorkspaceView(
        owner=owner, tenant="t", workspace=WorkspaceId("ws-1"), disk_bytes=1024, last_used=5.5
    )
    assert [each.gates for each in workspaces.values()] == [Gates(egress=True, commands=("rm",))] * (format >= 2)


async def test_what_was_taken_over_can_be_changed_and_deleted(path: Path) -> None:
    former_files.write(path, former_files.ENGINE)
    store = Store(path)
    (parent,) = [each for each in store.load(SESSIONS) if each.record.parent is None]
    changed = replace(parent.record, phase=Phase.TERMINATING)
    await store.commit(SESSIONS.put(changed, if_version=parent.version))
    key = SESSIONS.key(changed)
    assert [each.record for each in store.load(SESSIONS, *key[:1]) if each.record.parent is None] == [changed]
    await store.commit(RUNS.delete_under(*key), TERMINALS.delete_under(*key), SESSIONS.delete(*key))
    assert [each.record.session_id for each in store.load(SESSIONS)] == ["child"]
    assert [each.record.run_id for each in store.load(RUNS)] == ["run-4"]
    assert store.load(TERMINALS) == []
    store.close()


async def test_a_former_file_with_a_damaged_row_is_named_with_the_remedy_and_stays_as_it_was(path: Path) -> None:
    former_files.write(path, former_files.ENGINE, ("UPDATE sessions SET spec='{' WHERE sandbox=?", ("sb-2",)))
    for _ in range(2):
        with pytest.raises(StoreFailed, match=r"damaged.*restore it from a backup"):
            Store(path)


def test_sql_is_in_one_module_of_the_engine() -> None:
    engine = Path(k8e.engine.__file__).parent
    using = re.compile(r"\bsqlite3\b|\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|PRAGMA)\b")
    found = {str(path.relative_to(engine)) for path in engine.rglob("*.py") if using.search(path.read_text("utf-8"))}
    assert found == {"store/sqlite.py"}
