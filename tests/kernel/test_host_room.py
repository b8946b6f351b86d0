"""Sandboxes whose disks promise more than the host's disk has: nobody's write is lost, and what is freed comes back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from k8e.errors import DiskFull
from k8e.model import GIB, MIB, Runtime, SandboxId, Template, WorkspaceId
from k8e.setup.provision import Provisioned
from k8e.substrate.local.layout import Layout
from k8e.substrate.local.machine import LocalMachine
from k8e.substrate.local.settings import LocalSettings
from tests.support.bare_sandboxes import Bare, standin_settings
from tests.support.credentials import CREDENTIALS
from tests.support.eventually import eventually
from tests.support.leaks import Lend
from tests.support.small_disks import free_bytes, leave, small_disk

pytestmark = pytest.mark.anyio

RESERVE = 100 * MIB

_FILL = """
import os, sys
most, done = int(sys.argv[2]), 0
with open(sys.argv[1], sys.argv[3], buffering=0) as file:
    try:
        while done < most:
            done += file.write(b"x" * 1048576)
        print("all", end=" ")
    except OSError as error:
        print(os.strerror(error.errno), end=" ")
    os.fsync(file.fileno())
    print(done)
"""


_MAPPED = """
import mmap, sys
with open(sys.argv[1], "w+b") as file:
    file.truncate(40 << 20)
    with mmap.mmap(file.fileno(), 0) as memory:
        memory[:] = b"x" * (40 << 20)
"""


@pytest.fixture(scope="module")
def shared(lend: Lend) -> Iterator[Path]:
    """One for all: what the first sandbox of a directory needs is made there once, and takes seconds."""
    with small_disk(lend("room"), 900 * MIB) as place:
        yield place


@pytest.fixture
def place(shared: Path) -> Iterator[Path]:
    # What is removed is room again when the kernel lets go of it, and then no test should count what is left.
    assert eventually(lambda: not _has_disks_in_use(shared))
    yield shared
    (shared / "ballast").unlink(missing_ok=True)


def _has_disks_in_use(place: Path) -> bool:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # it has gone meanwhile
            if backing.read_text().startswith(f"{place}/"):
                return True
    return False


@contextlib.asynccontextmanager
async def _tended(settings: LocalSettings) -> AsyncIterator[LocalMachine]:
    substrate = LocalMachine(settings)
    async with asyncio.TaskGroup() as group:
        tending = group.create_task(substrate.tend(), name="tend")
        yield substrate
        tending.cancel()


@pytest.fixture
async def substrate(place: Path, host: Provisioned) -> AsyncIterator[LocalMachine]:
    settings = standin_settings(place, host)
    async with _tended(_reserving(settings)) as substrate:
        yield substrate


def _reserving(settings: LocalSettings) -> LocalSettings:
    return dataclasses.replace(settings, reserve_disk=RESERVE)


@contextlib.asynccontextmanager
async def _box(substrate: LocalMachine, runtime: Runtime, disk_bytes: int = GIB) -> AsyncIterator[Bare]:
    sandbox = SandboxId(f"t-{secrets.token_hex(6)}")
    try:
        await substrate.create(sandbox, Template(runtime=runtime, memory_bytes=GIB, disk_bytes=disk_bytes), CREDENTIALS)
        async with await substrate.dial(sandbox, CREDENTIALS) as link:
            paths = Layout(substrate.data_dir).sandbox(sandbox)
            yield Bare(id=sandbox, link=link, substrate=substrate, paths=paths)
    finally:
        await substrate.destroy(sandbox)


async def _fill(box: Bare, path: str, most: int, mode: str = "wb") -> tuple[str, int]:
    """What stopped it, and how much was written before; what cannot be kept raises inside, and fails here."""
    said = await box.sh(f"python3 -c '{_FILL}' {path} {most} {mode} 2>&1")
    why, _, done = said.strip().rpartition(" ")
    assert done.isdecimal(), said
    return why, int(done)


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await is_so():
            await asyncio.sleep(0.02)


async def _fill_up(box: Bare, path: str) -> int:
    """All that it can have: a share until the next look, and then what that gives. Returns how much it was."""
    total = 0

    async def is_full() -> bool:
        nonlocal total
        why, done = await _fill(box, path, GIB, "ab")
        assert why == "No space left on device"
        total += done
        return await _is_told(box, 4 * MIB)

    await _until(is_full)
    return total


async def _is_told(box: Bare, most: int) -> bool:
    """Whether what it sees as free is no more than this."""
    return int(await box.sh("df -B1 --output=avail /workspace | tail -1")) <= most


async def test_what_the_host_has_no_room_for_fails_inside_and_works_again_later(
    substrate: LocalMachine, place: Path, runtime: Runtime
) -> None:
    async with _box(substrate, runtime) as box, _box(substrate, runtime) as neighbour:
        assert await _fill(box, "/workspace/control", 5 * MIB) == ("all", 5 * MIB)
        ballast = leave(place, RESERVE + 150 * MIB)
        await _until(lambda: _is_told(box, 150 * MIB))
        assert 100 * MIB < await _fill_up(box, "/workspace/big") <= 160 * MIB
        assert free_bytes(place) > RESERVE // 2
        await _until(lambda: _is_told(neighbour, 10 * MIB))
        why, done = await _fill(neighbour, "/tmp/more", 50 * MIB)
        assert (why, done < 20 * MIB) == ("No space left on device", True)
        # What was there before can still be written over: its blocks are on the host's disk.
        assert await box.code("dd if=/dev/zero of=/workspace/control bs=1M count=5 conv=notrunc,fsync") == 0
        assert await neighbour.code(f"python3 -c '{_MAPPED}' /tmp/mapped") != 0
        ballast.unlink()

        async def writes_again() -> bool:
            return await _fill(neighbour, "/tmp/again", 50 * MIB) == ("all", 50 * MIB)

        await _until(writes_again)
        assert await neighbour.code(f"python3 -c '{_MAPPED}' /tmp/mapped") == 0


async def test_several_that_write_at_once_lose_nothing(substrate: LocalMachine, place: Path, runtime: Runtime) -> None:
    async with _box(substrate, runtime) as one, _box(substrate, runtime) as other:
        leave(place, RESERVE + 200 * MIB)
        await _until(lambda: _is_told(one, 200 * MIB))
        async with asyncio.TaskGroup() as group:
            filling = [group.create_task(_fill(box, "/workspace/big", GIB), name=box.id) for box in (one, other)]
        assert [task.result()[0] for task in filling] == ["No space left on device"] * 2


async def test_space_that_was_promised_at_once_counts_before_it_is_used(
    substrate: LocalMachine, place: Path, runtime: Runtime
) -> None:
    async with _box(substrate, runtime) as box:
        leave(place, RESERVE + 200 * MIB)
        await _until(lambda: _is_told(box, 200 * MIB))
        assert await box.code("fallocate -l 300M /workspace/too-much") != 0
        assert await box.code("rm -f /workspace/too-much") == 0

        async def is_granted() -> bool:
            return await box.code("fallocate -l 150M /workspace/promised") == 0

        await _until(is_granted)

        async def counts() -> bool:
            return (await _fill(box, "/workspace/beside", 60 * MIB))[0] == "No space left on device"

        await _until(counts)
        assert await box.code("dd if=/dev/zero of=/workspace/promised bs=1M count=150 conv=notrunc,fsync") == 0


async def test_space_freed_inside_comes_back_to_the_host(
    substrate: LocalMachine, place: Path, runtime: Runtime
) -> None:
    async with _box(substrate, runtime) as box:
        before = box.paths.image.stat().st_blocks * 512
        assert await _fill(box, "/workspace/big", 100 * MIB) == ("all", 100 * MIB)
        assert box.paths.image.stat().st_blocks * 512 > before + 90 * MIB
        assert await box.code("rm /workspace/big; sync") == 0

        async def is_back() -> bool:
            return box.paths.image.stat().st_blocks * 512 < before + 20 * MIB

        await _until(is_back)


async def test_no_sandbox_or_workspace_begins_on_the_reserve(substrate: LocalMachine, place: Path) -> None:
    async with _box(substrate, Runtime.CONTAINER):
        pass
    ballast = leave(place, RESERVE - MIB)
    with pytest.raises(DiskFull, match=f"free space on the disk of {place}"):
        async with _box(substrate, Runtime.CONTAINER):
            pass
    with pytest.raises(DiskFull):
        await substrate.create_workspace(WorkspaceId("ws-new"), 64 * MIB)
    ballast.unlink()
    async with _box(substrate, Runtime.CONTAINER):
        pass
    await substrate.create_workspace(WorkspaceId("ws-new"), 64 * MIB)
    leave(place, RESERVE - MIB)
    await substrate.create_workspace(WorkspaceId("ws-new"), 64 * MIB)  # it is there already
    await substrate.delete_workspace(WorkspaceId("ws-new"))
