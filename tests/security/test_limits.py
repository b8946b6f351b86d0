"""Limits attacked from inside, as root, beside a neighbour: a truthful error, a living session, a quiet neighbour."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.model import MIB, Limits, Reason, Runtime, SessionId, Status
from k8e.substrate.local.layout import Layout
from tests.support.cells import OWNER, Cell, CellFactory

pytestmark = pytest.mark.anyio

_ATTACK_S = 60.0
_OUR_PROCESSES = 6
"""The allowance for what waits among the commands without being one."""


_MORE_THAN_HALF = 0.65
_FEW_PROCESSES = 64
_ROOM_FOR_A_BOMB = Limits(command_timeout_s=_ATTACK_S, memory_bytes=1024 * MIB, processes=_FEW_PROCESSES)
"""A process costs some MiB of the sandbox's memory under gVisor: with many of them that limit would come first."""


@pytest.fixture
async def attacker(runtime: Runtime, cells: CellFactory) -> AsyncIterator[Cell]:
    async with cells(runtime, limits=Limits(command_timeout_s=_ATTACK_S)) as cell:
        yield cell


@pytest.fixture
async def with_a_small_disk(runtime: Runtime, cells: CellFactory) -> AsyncIterator[Cell]:
    """So that filling it takes less time."""
    async with cells(runtime, limits=Limits(command_timeout_s=_ATTACK_S, disk_bytes=256 * MIB)) as cell:
        yield cell


@pytest.fixture
async def neighbour(runtime: Runtime, cells: CellFactory) -> AsyncIterator[Cell]:
    async with cells(runtime) as cell:
        yield cell
        assert (await cell.sh("echo unharmed")).stdout == b"unharmed\n"


async def _goes_on(cell: Cell) -> None:
    answer = await cell.sh("echo going on")
    assert answer.stdout == b"going on\n", answer


async def test_a_growing_memory_hog_dies_alone(attacker: Cell, neighbour: Cell) -> None:
    await attacker.sh("sleep 300 >/dev/null 2>&1 & echo $! > /workspace/bystander")
    hog = await attacker.py("kept = []\nwhile True:\n    kept.append(bytearray(4 * 1024 * 1024))")
    assert hog.outcome.reason in (Reason.OOM_KILLED, Reason.NONE)
    assert hog.outcome.exit_code != 0
    assert hog.outcome.reason is Reason.OOM_KILLED or b"MemoryError" in hog.stderr
    await _goes_on(attacker)
    assert (await attacker.sh("kill -0 $(cat /workspace/bystander) && echo alive")).stdout == b"alive\n"


async def test_one_huge_allocation_dies_alone(attacker: Cell, neighbour: Cell) -> None:
    hog = await attacker.py("b = bytearray(3 * 1024**3)\nprint(len(b))")
    assert hog.outcome.exit_code != 0
    assert hog.outcome.reason is Reason.OOM_KILLED or b"MemoryError" in hog.stderr
    await _goes_on(attacker)


async def test_reading_more_than_the_limit_kills_nobody(attacker: Cell) -> None:
    await attacker.sh("sleep 300 >/dev/null 2>&1 & echo $! > /workspace/bystander; truncate -s 2G /workspace/large")
    read = await attacker.py(
        "kept = bytearray(300 * 1024 * 1024)\n"
        "with open('/workspace/large', 'rb') as file:\n"
        "    print(sum(len(part) for part in iter(lambda: file.read(2**20), b'')))"
    )
    assert read.stdout == b"2147483648\n", read
    assert (await attacker.sh("kill -0 $(cat /workspace/bystander) && echo alive")).stdout == b"alive\n"


async def test_memory_up_to_the_limit_is_really_there(attacker: Cell) -> None:
    use = await attacker.py("b = bytearray(300 * 1024 * 1024)\nprint(len(b))")
    assert use.stdout == b"314572800\n"


async def test_a_fork_bomb_meets_its_limit_and_is_swept_away(
    runtime: Runtime, cells: CellFactory, neighbour: Cell
) -> None:
    async with cells(runtime, limits=_ROOM_FOR_A_BOMB) as attacker:
        await _set_off_a_bomb(attacker)
        for _ in range(3):
            await _goes_on(attacker)


async def _set_off_a_bomb(attacker: Cell) -> None:
    bomb = await attacker.py(
        "import os, time\n"
        "made = 0\n"
        "while True:\n"
        "    try:\n"
        "        if os.fork() == 0:\n"
        "            os.setsid(); time.sleep(1000); os._exit(0)\n"
        "        made += 1\n"
        "    except OSError as error:\n"
        "        print(made, error.strerror, flush=True)\n"
        "        break\n"
        "os.kill(os.getpid(), 9)\n"
    )
    made, _, why = bomb.stdout.decode().strip().partition(" ")
    assert _FEW_PROCESSES // 2 < int(made) <= _FEW_PROCESSES + _OUR_PROCESSES
    assert why == "Resource temporarily unavailable"


async def test_a_time_out_ends_every_descendant_of_a_bomb(
    runtime: Runtime, cells: CellFactory, neighbour: Cell
) -> None:
    async with cells(runtime, limits=_ROOM_FOR_A_BOMB) as attacker:
        bomb = await attacker.py(
            "import os, time\n"
            "while True:\n"
            "    try:\n"
            "        os.fork() or os.setsid()\n"
            "    except OSError:\n"
            "        time.sleep(1000)\n",
            timeout_s=3.0,
        )
        assert bomb.outcome.status is Status.TIMED_OUT
        assert bomb.outcome.exit_code == 124
        await _goes_on(attacker)
        async with asyncio.timeout(60):
            while [each for each in await attacker.engine.processes(OWNER, attacker.id) if each.state not in "ZX"]:
                await asyncio.sleep(0.01)


async def test_a_full_disk_is_said_to_be_full(with_a_small_disk: Cell, neighbour: Cell, engine_dir: Path) -> None:
    attacker = with_a_small_disk
    sandbox = attacker.engine.get_session(OWNER, attacker.id).sandbox
    assert sandbox is not None
    disk = Layout(engine_dir).sandbox(sandbox).image
    full = await attacker.sh("dd if=/dev/zero of=/workspace/big bs=1M 2>&1; echo exit $?; ls -s /workspace/big")
    assert b"No space left on device" in full.stdout
    # Of its own disk, and not of what is free on the host, which others use as well.
    assert 0 < disk.stat().st_blocks * 512 < 400 * MIB
    await _goes_on(attacker)
    assert (
        await attacker.sh("rm /workspace/big && echo ok > /workspace/small && cat /workspace/small")
    ).stdout == b"ok\n"


async def test_tmp_and_home_are_bounded_too(with_a_small_disk: Cell) -> None:
    attacker = with_a_small_disk
    for place in ("/tmp", "/root"):
        full = await attacker.sh(f"dd if=/dev/zero of={place}/big bs=1M count=4096 2>&1; rm -f {place}/big")
        assert b"No space left" in full.stdout or b"annot allocate" in full.stdout, full.stdout
    await _goes_on(attacker)


async def test_running_out_of_inodes_is_an_error_not_a_disaster(with_a_small_disk: Cell, neighbour: Cell) -> None:
    attacker = with_a_small_disk
    filler = await attacker.py(
        "import os\n"
        "os.makedirs('/workspace/many')\n"
        "n = 0\n"
        "try:\n"
        "    while n < 3_000_000:\n"
        "        os.close(os.open(f'/workspace/many/{n}', os.O_CREAT | os.O_WRONLY)); n += 1\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n",
        timeout_s=_ATTACK_S * 3,
    )
    assert filler.stdout == b"No space left on device\n"
    await _goes_on(attacker)


async def test_more_output_than_the_bound_is_cut_and_said_so(attacker: Cell) -> None:
    flood = await attacker.sh("head -c 5000000 /dev/zero | tr '\\0' x; echo done >&2")
    assert len(flood.stdout) == MIB
    assert flood.truncated
    assert flood.stderr == b"done\n"
    assert flood.outcome.exit_code == 0
    small = await attacker.sh("echo small")
    assert not small.truncated


async def test_a_command_that_outstays_its_time_is_ended(attacker: Cell) -> None:
    for limit_s in (1.0, 10.0, 30.0):
        late = await attacker.sh("echo began; sleep 1000", timeout_s=limit_s)
        assert (late.outcome.status, late.outcome.exit_code) == (Status.TIMED_OUT, 124)
        if late.stdout:
            break  # a busy machine may need longer than the shortest limit to begin at all
    assert late.stdout == b"began\n"
    await _goes_on(attacker)


async def test_running_out_of_descriptors_hurts_only_the_command(attacker: Cell, neighbour: Cell) -> None:
    greedy = await attacker.py(
        "import os\nkept = []\ntry:\n    while True: kept.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError as error: print(error.strerror)"
    )
    assert greedy.stdout == b"Too many open files\n"
    await _goes_on(attacker)


async def test_inotify_cannot_blind_the_host(attacker: Cell, neighbour: Cell) -> None:
    greedy = "import ctypes, time\nlibc = ctypes.CDLL(None)\nwhile libc.inotify_init1(0) >= 0: pass\n"
    await attacker.write("/workspace/greedy.py", f"{greedy}print('done', flush=True)\ntime.sleep(600)\n".encode())
    # In the background: what it holds must be there while the host is looked at.
    begun = await attacker.sh("python3 greedy.py >said 2>&1 & until grep -q done said; do sleep 0.01; done; echo begun")
    assert begun.stdout == b"begun\n"
    descriptor = ctypes.CDLL(None).inotify_init1(0)
    assert descriptor >= 0
    os.close(descriptor)
    await _goes_on(attacker)


async def test_zombies_are_reaped(attacker: Cell) -> None:
    await attacker.py(
        "import os\n"
        "for _ in range(300):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: os._exit(0)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    await _goes_on(attacker)
    async with asyncio.timeout(60):
        while [each for each in await attacker.engine.processes(OWNER, attacker.id) if each.state == "Z"]:
            await asyncio.sleep(0.01)


async def test_the_cpu_limit_holds(runtime: Runtime, cells: CellFactory) -> None:
    burn = (
        "import os, time\n"
        "children = []\n"
        "for _ in range(2):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        end = time.monotonic() + 3\n"
        "        while time.monotonic() < end: pass\n"
        "        os._exit(0)\n"
        "    children.append(pid)\n"
        "for pid in children: os.waitpid(pid, 0)\n"
    )
    async with cells(runtime, limits=Limits(cpus=0.5)) as cell:
        assert await _cpus_used(cell, burn) < _MORE_THAN_HALF
    async with cells(runtime, limits=Limits(cpus=2.0)) as cell, asyncio.timeout(80):
        while await _cpus_used(cell, burn) < _MORE_THAN_HALF:
            pass  # others on this machine may need most of it just now


async def test_a_session_under_attack_can_be_destroyed_at_once(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime) as cell:
        await cell.sh("bomb() { bomb | bomb & }; bomb >/dev/null 2>&1 &", timeout_s=2.0)
        await cell.engine.destroy_session(OWNER, cell.id)
        assert all(view.session_id != cell.id for view in cell.engine.list_sessions(OWNER))


async def _cpus_used(cell: Cell, program: str) -> float:
    """How many processors' worth the session itself uses while a program runs; nobody else's use counts."""
    key = (OWNER, SessionId(cell.id))
    (before,), began = await cell.engine.usage([key]), time.monotonic()
    await cell.py(program)
    (after,) = await cell.engine.usage([key])
    return (after.cpu_s - before.cpu_s) / (time.monotonic() - began)
