"""Files, on every runtime: any name, any size, atomic, and truthful about what went wrong."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator

import pytest

from k8e.errors import Conflict, InvalidSpec, K8eError, NotFound
from k8e.model import MIB, FileKind, Limits, Runtime
from tests.support.cells import OWNER, Cell, CellFactory, chunks

pytestmark = pytest.mark.anyio

_NAMES = [
    "plain",
    "with space",
    "100%",
    "a#b?c&d",
    "new\nline",
    "caf\u00e9",
    "\udcff\udcfe",
    "-dash",
    "quote'\"",
    "\U0001f9ea",
]


@pytest.mark.shares_sandbox
@pytest.mark.parametrize("name", _NAMES)
async def test_any_name_works_everywhere(cell: Cell, name: str) -> None:
    path = f"/workspace/{name}"
    await cell.write(path, b"content")
    assert await cell.read(path) == b"content"
    listed = (await cell.engine.list_files(OWNER, cell.id, "/workspace")).entries
    assert path in [entry.path for entry in listed]
    assert (await cell.engine.stat_file(OWNER, cell.id, path)).size == 7
    await cell.engine.move_file(OWNER, cell.id, path, f"{path}.moved")
    await cell.engine.remove_file(OWNER, cell.id, f"{path}.moved")
    with pytest.raises(NotFound):
        await cell.read(path)


@pytest.mark.shares_sandbox
@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 3 * MIB + 1, 64 * MIB])
async def test_any_size_comes_back_unchanged(cell: Cell, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert await cell.write("/workspace/big", data) == size
    digest = hashlib.sha256()
    async for chunk in cell.engine.read_file(OWNER, cell.id, "/workspace/big"):
        digest.update(chunk)
    assert digest.digest() == hashlib.sha256(data).digest()


@pytest.mark.shares_sandbox
async def test_a_part_of_a_file_can_be_read(cell: Cell) -> None:
    await cell.write("/workspace/f", b"0123456789")
    pieces = [piece async for piece in cell.engine.read_file(OWNER, cell.id, "/workspace/f", offset=3, length=4)]
    assert b"".join(pieces) == b"3456"


@pytest.mark.shares_sandbox
async def test_append_adds_and_write_replaces(cell: Cell) -> None:
    await cell.write("/workspace/f", b"one")
    await cell.write("/workspace/f", b"two", append=True)
    assert await cell.read("/workspace/f") == b"onetwo"
    await cell.write("/workspace/f", b"three", perm=0o755)
    assert await cell.read("/workspace/f") == b"three"
    assert (await cell.engine.stat_file(OWNER, cell.id, "/workspace/f")).mode & 0o777 == 0o755


@pytest.mark.shares_sandbox
async def test_missing_parents_are_made_and_relative_paths_mean_the_workspace(cell: Cell) -> None:
    await cell.write("a/b/c.txt", b"x")
    assert await cell.read("/workspace/a/b/c.txt") == b"x"


async def test_a_broken_transfer_leaves_the_old_content(cell: Cell) -> None:
    await cell.write("/workspace/f", b"old")

    async def breaks() -> AsyncIterator[bytes]:
        yield b"new" * 1000
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await cell.engine.write_file(OWNER, cell.id, "/workspace/f", breaks())
    assert await cell.read("/workspace/f") == b"old"
    deadline = time.monotonic() + 60
    while (names := [each.path for each in (await cell.engine.list_files(OWNER, cell.id, "/workspace")).entries]) != [
        "/workspace/f"
    ]:
        assert time.monotonic() < deadline, f"a temporary file was left: {names}"


@pytest.mark.not_bare
async def test_a_full_disk_fails_the_write_and_says_so(runtime: Runtime, cells: CellFactory) -> None:
    # A small one, which any machine fills before the command's time is over.
    async with cells(runtime, limits=Limits(disk_bytes=128 * MIB)) as cell:
        await cell.sh("dd if=/dev/zero of=/workspace/ballast bs=1M; sync")
        with pytest.raises(K8eError, match="No space left"):
            await cell.write("/workspace/f", b"x" * 4 * MIB)


async def test_listing_shows_directories_kinds_and_links(cell: Cell) -> None:
    await cell.sh("mkdir -p d/e; echo 12345 > d/file; ln -s file d/link; mkfifo d/pipe")
    entries = {
        entry.path: entry
        for entry in (await cell.engine.list_files(OWNER, cell.id, "/workspace", recursive=True)).entries
    }
    assert entries["/workspace/d"].kind is FileKind.DIRECTORY
    assert entries["/workspace/d/e"].kind is FileKind.DIRECTORY
    assert (entries["/workspace/d/file"].kind, entries["/workspace/d/file"].size) == (FileKind.FILE, 6)
    assert (entries["/workspace/d/link"].kind, entries["/workspace/d/link"].target) == (FileKind.SYMLINK, "file")
    assert entries["/workspace/d/pipe"].kind is FileKind.OTHER


async def test_since_shows_only_what_changed(cell: Cell) -> None:
    await cell.sh("touch -d '2001-01-01' old; touch new")
    entries = (
        await cell.engine.list_files(OWNER, cell.id, "/workspace", recursive=True, since_s=1_000_000_000)
    ).entries
    assert [entry.path for entry in entries] == ["/workspace/new"]


@pytest.mark.shares_sandbox
async def test_errors_say_what_and_where(cell: Cell) -> None:
    with pytest.raises(NotFound, match="/workspace/nothing"):
        await cell.read("/workspace/nothing")
    with pytest.raises(Conflict, match="/workspace: Is a directory"):
        await cell.read("/workspace")
    await cell.write("/workspace/file", b"x")
    with pytest.raises(K8eError, match="/workspace/file"):
        await cell.write("/workspace/file/below", b"x")
    await cell.sh("mkdir -p full; touch full/x")
    with pytest.raises((Conflict, InvalidSpec), match="full"):
        await cell.engine.remove_file(OWNER, cell.id, "/workspace/full")
    await cell.engine.remove_file(OWNER, cell.id, "/workspace/full", recursive=True)


async def test_a_watch_sees_changes(cell: Cell) -> None:
    seen: set[tuple[str, str]] = set()
    begun = asyncio.Event()

    async def watch() -> None:
        changes = cell.engine.watch(OWNER, cell.id, "/workspace", recursive=True)
        async for change in changes:
            seen.add((change.kind, change.path))
            begun.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch())
        n = 0
        while not begun.is_set():
            await cell.write(f"/workspace/start-{n}", b"x")
            n += 1
        await cell.sh("echo x > /workspace/made; rm /workspace/made")
        while not {("create", "/workspace/made"), ("remove", "/workspace/made")} <= seen:
            await asyncio.sleep(0.01)
        task.cancel()


async def test_two_writers_at_once_leave_one_whole_content(cell: Cell) -> None:
    contents = [bytes([65 + n]) * MIB for n in range(4)]
    async with asyncio.TaskGroup() as group:
        for content in contents:
            group.create_task(cell.engine.write_file(OWNER, cell.id, "/workspace/f", chunks(content)))
    assert await cell.read("/workspace/f") in contents


@pytest.mark.shares_sandbox
async def test_a_large_tree_is_listed_in_pages_of_bounded_size(cell: Cell) -> None:
    await cell.py(
        """
import os
os.makedirs("pages/" + "/".join(["d" * 200] * 10), exist_ok=True)
os.chdir("pages/" + "/".join(["d" * 200] * 10))
for number in range(4000):
    open(f"{number:05}", "w").close()
""",
        timeout_s=60,
    )
    pages, after = [], ""
    while True:
        page = await cell.engine.list_files(OWNER, cell.id, "/workspace/pages", recursive=True, after=after)
        pages.append(page.entries)
        if not (after := page.after):
            break
    assert len(pages) > 1
    assert all(sum(len(entry.path) for entry in page) <= 4 * MIB for page in pages)
    names = [entry.path.rpartition("/")[2] for page in pages for entry in page if entry.kind is FileKind.FILE]
    assert names == [f"{number:05}" for number in range(4000)]
    few = await cell.engine.list_files(OWNER, cell.id, "/workspace/pages", recursive=True, most=3)
    assert [entry.path for entry in few.entries] == [entry.path for entry in pages[0][:3]]
    assert few.after == few.entries[-1].path
