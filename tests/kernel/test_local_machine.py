"""One sandbox on the real kernel: what it is made of, what bounds it, and that it goes without a trace."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from k8e.errors import Conflict, HostUnsupported, InvalidSpec, SandboxFailed
from k8e.model import MIB, Claim, Runtime, SandboxId, Template, WorkspaceId
from k8e.setup.provision import Provisioned
from k8e.substrate.local import record
from k8e.substrate.local.blocks import base_id
from k8e.substrate.local.host import cgroup, loop, mount
from k8e.substrate.local.host.process import Process
from k8e.substrate.local.layout import Layout
from k8e.substrate.local.machine import LocalMachine
from k8e.substrate.local.runtimes import agent_socket
from k8e.substrate.local.runtimes.driver import LocalSandbox
from k8e.substrate.local.runtimes.oci import OciDriver
from k8e.substrate.local.runtimes.overlay import OverlayRoots
from k8e.substrate.local.turns import Turns
from tests.support.bare_sandboxes import Bare, Boxes, standin_settings
from tests.support.credentials import CREDENTIALS
from tests.support.sandbox_traces import is_gone, sandbox_traces

pytestmark = pytest.mark.anyio

TIMEOUT_S = 60.0
CLAIM = Claim(cpus=1, processes=32)


def _name(text: str) -> SandboxId:
    """Control groups are the whole host's, and another run may be doing the same there just now."""
    return SandboxId(f"t-{text}-{secrets.token_hex(4)}")


def _traces(box: Bare) -> dict[str, bool]:
    return sandbox_traces(box.substrate.data_dir, box.id)


async def test_a_destroyed_sandbox_leaves_nothing(boxes: Boxes, runtime: Runtime, substrate: LocalMachine) -> None:
    async with boxes(runtime) as box:
        assert all(_traces(box).values()), "the control: it was all there"
        assert box.id in await substrate.survivors()
    assert is_gone(box.substrate.data_dir, box.id), _traces(box)
    assert box.id not in await substrate.survivors()


async def test_a_sandbox_is_in_its_own_group_in_every_hierarchy(boxes: Boxes, runtime: Runtime) -> None:
    async with boxes(runtime) as box:
        known = record.load(box.paths)
        assert known is not None
        lines = Path(f"/proc/{known.pid}/cgroup").read_text(encoding="ascii").splitlines()
    assert lines
    assert all(f"/k8e/{box.id}/" in line for line in lines)


async def test_root_inside_is_nobody_outside(boxes: Boxes, runtime: Runtime) -> None:
    async with boxes(runtime) as box:
        known = record.load(box.paths)
        assert known is not None
        assert await box.sh("id -u; touch /workspace/file; stat -c %u /workspace/file") == "0\n0\n"
        assert (box.paths.disk / "workspace/file").stat().st_uid == 0, "as stored"
        assert (box.paths.workspace / "file").stat().st_uid == base_id(known.block), "as the host sees it used"


async def test_two_sandboxes_share_no_owner(boxes: Boxes, runtime: Runtime) -> None:
    async with boxes(runtime) as one, boxes(runtime) as other:
        first, second = record.load(one.paths), record.load(other.paths)
    assert first is not None
    assert second is not None
    assert first.block != second.block


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/root"])
async def test_a_full_disk_is_an_error_inside_and_nothing_outside(boxes: Boxes, runtime: Runtime, place: str) -> None:
    async with boxes(runtime, disk_bytes=64 * MIB) as box:
        assert await box.code(f"head -c 8M /dev/zero >{place}/small") == 0, "the control: there is room for this"
        assert "No space left" in await box.sh(f"head -c 128M /dev/zero >{place}/large")
        assert await box.code(f"rm {place}/large && echo fine >{place}/again") == 0
        assert box.paths.image.stat().st_blocks * 512 <= 65 * MIB


async def test_inodes_are_bounded(boxes: Boxes, runtime: Runtime) -> None:
    async with boxes(runtime, disk_bytes=64 * MIB) as box:
        fill = "cd /workspace && i=0; while true >f$i; do i=$((i+1)); done; echo $i"
        made = int((await box.sh(f"({fill}) 2>/dev/null")).split()[-1])
    assert 100 < made < 5_000


async def test_the_socket_directory_is_sealed(boxes: Boxes, runtime: Runtime) -> None:
    async with boxes(runtime) as box:
        assert await box.code("touch /root/file") == 0, "the control"
        assert "Read-only" in await box.sh("touch /.k8e-run/file")
        assert await box.sh("ls -A /.k8e-run") == ""
        await box.link.close()  # the stand-in serves one connection at a time
        async with await box.substrate.dial(box.id, CREDENTIALS) as link:
            assert link.hello["boot"] == "stand-in"


async def test_nothing_on_the_host_is_reached_through_stdio(boxes: Boxes) -> None:
    async with boxes(Runtime.CONTAINER) as box:
        links = await box.sh("for n in 0 1 2; do readlink /proc/1/fd/$n; done")
    assert links.split() == ["/dev/null"] * 3


async def test_death_is_known_at_once(boxes: Boxes, runtime: Runtime, substrate: LocalMachine) -> None:
    async with boxes(runtime) as box:
        known = record.load(box.paths)
        assert known is not None
        assert substrate.alive(box.id), "the control"
        async with asyncio.timeout(TIMEOUT_S):
            os.kill(known.pid, signal.SIGKILL)
            await substrate.death(box.id)
        assert not substrate.alive(box.id)


async def test_destroying_twice_or_what_never_was_is_fine(boxes: Boxes, substrate: LocalMachine) -> None:
    async with boxes(Runtime.CONTAINER) as box:
        await substrate.destroy(box.id)
        await substrate.destroy(box.id)
    await substrate.destroy(_name("never-was"))


async def test_overlapping_removals_wait_for_each_other(boxes: Boxes, runtime: Runtime) -> None:
    async with boxes(runtime) as box:
        await box.link.close()
        assert all(_traces(box).values()), "the control"
        async with asyncio.TaskGroup() as removals:
            for number in range(4):
                removals.create_task(box.substrate.destroy(box.id), name=f"removal {number}")
    assert is_gone(box.substrate.data_dir, box.id), _traces(box)


@pytest.mark.parametrize(
    ("place", "step"), [(OverlayRoots, "make_disk"), (OverlayRoots, "mount"), (OciDriver, "_write_spec")]
)
async def test_a_removal_during_creation_waits_and_removes_what_was_built(
    substrate: LocalMachine, monkeypatch: pytest.MonkeyPatch, place: type, step: str
) -> None:
    loop, reached, may_go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    real, join, listening = getattr(place, step), Turns._join, OciDriver.listening
    removed = asyncio.Event()
    sandbox = _name(f"overlap-{step.strip('_')}")

    def announce(itself: object, building: LocalSandbox, *more: object) -> None:
        # An image is built in a sandbox as well, and so is what the pools of other engines hold.
        if building.id == sandbox:
            loop.call_soon_threadsafe(reached.set)
            may_go_on.wait(TIMEOUT_S)
        real(itself, building, *more)

    def joined(turns: Turns, name: str) -> threading.Lock:
        lock = join(turns, name)
        if name == sandbox and reached.is_set():
            may_go_on.set()  # the removal waits for its turn
        return lock

    async def listens_later(driver: OciDriver, building: LocalSandbox, init: Process) -> None:
        """The removal has the sandbox now, however quick its boot is."""
        if building.id == sandbox:
            await removed.wait()
        await listening(driver, building, init)

    monkeypatch.setattr(place, step, announce)
    monkeypatch.setattr(Turns, "_join", joined)
    monkeypatch.setattr(OciDriver, "listening", listens_later)
    template = Template(runtime=Runtime.CONTAINER, disk_bytes=64 * MIB)
    creating = asyncio.ensure_future(substrate.create(sandbox, template, CREDENTIALS))
    async with asyncio.timeout(TIMEOUT_S):
        await reached.wait()
        await substrate.destroy(sandbox)
        removed.set()
        with pytest.raises(SandboxFailed):
            await creating
    assert is_gone(substrate.data_dir, sandbox)
    assert sandbox not in await substrate.survivors()


STEPS = [
    (cgroup.SandboxGroup, "create"),
    (OverlayRoots, "make_disk"),
    (OverlayRoots, "mount"),
    (agent_socket, "make"),
    (OciDriver, "_write_spec"),
    (agent_socket, "capture"),
    (agent_socket, "seal"),
]


@pytest.mark.parametrize(("place", "name"), STEPS, ids=[name for _, name in STEPS])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_failed_step_leaves_nothing(
    substrate: LocalMachine, monkeypatch: pytest.MonkeyPatch, place: object, name: str, when: str
) -> None:
    real = getattr(place, name)

    def fail(*args: object, **kwargs: object) -> None:
        if when == "after":
            real(*args, **kwargs)
        raise OSError(5, "injected")

    monkeypatch.setattr(place, name, fail)
    sandbox = _name(f"fault-{name.strip('_')}-{when}")
    with pytest.raises(SandboxFailed, match="injected"):
        await substrate.create(sandbox, Template(runtime=Runtime.CONTAINER, disk_bytes=64 * MIB), CREDENTIALS)
    assert is_gone(substrate.data_dir, sandbox)
    assert sandbox not in await substrate.survivors()


async def test_a_cancelled_creation_leaves_nothing(substrate: LocalMachine, runtime: Runtime) -> None:
    sandbox = _name(f"cancelled-{runtime}")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.03):
            await substrate.create(sandbox, Template(runtime=runtime, disk_bytes=64 * MIB), CREDENTIALS)
    assert is_gone(substrate.data_dir, sandbox)
    assert sandbox not in await substrate.survivors()


async def test_commands_are_bounded_in_number(boxes: Boxes) -> None:
    # They last until they are ended, or until the sandbox is: however long it takes to start them, they are there at once.
    flood = 'for i in $(seq 64); do sleep 600 >/dev/null 2>&1 & all="$all $!"; echo $i; done; kill $all'
    async with boxes(Runtime.CONTAINER) as box:
        await box.substrate.configure(box.id, CLAIM, box.link)
        assert "64" in (await box.sh(flood)).split(), "the control: outside the commands' group"
        bounded = await box.sh(f"echo 0 >/.k8e-cgroup; {flood}")
    assert "Cannot fork" in bounded
    # What the agent keeps waiting in the group is allowed for; this agent keeps nothing there.
    assert {"32", "39"} & set(bounded.split()) == {"32"}


async def _relieve(box: Bare) -> None:
    """What the engine does: learn of it, let the agent kill, put the limit back."""
    await box.substrate.out_of_memory(box.id)
    await box.link.call("oom", {}, timeout_s=TIMEOUT_S)
    await box.substrate.relieved(box.id)


def _group(box: Bare) -> cgroup.SandboxGroup:
    return cgroup.SandboxGroup(cgroup.hierarchies(), box.id, owner="")


@pytest.mark.parametrize("hog", ["x = bytearray(600 * 2**20)", "x = []\nwhile True: x.append(bytearray(2**20))"])
async def test_the_hog_dies_and_the_sandbox_lives(boxes: Boxes, runtime: Runtime, hog: str) -> None:
    async with boxes(runtime) as box, asyncio.timeout(TIMEOUT_S):
        await box.substrate.configure(box.id, CLAIM, box.link)
        await box.link.call("start", {"text": f"unset PYTHONHOME; python3 -c '{hog}'; echo $? >/tmp/ended"})
        if runtime is Runtime.GVISOR:
            await _relieve(box)
        while not (ended := await box.sh("cat /tmp/ended 2>/dev/null; sleep 0.02")):
            pass
        assert ended == "137\n"
        assert box.substrate.alive(box.id)
        assert _group(box).memory_kills() == (0 if runtime is Runtime.GVISOR else 1)


def _refusals(box: Bare) -> int:
    """How often the kernel refused this sandbox memory, or looked for some to take back first."""
    group = _group(box)
    directory = group.directory("memory")
    assert directory is not None
    if group.version("memory") == 1:
        return int((directory / "memory.failcnt").read_text(encoding="ascii"))
    events = dict(line.split() for line in (directory / "memory.events").read_text(encoding="ascii").splitlines())
    return int(events["max"])


async def test_the_hog_dies_before_memory_is_refused_to_anybody(boxes: Boxes) -> None:
    """gVisor's kernel does not survive a refusal: a signal whose frame finds no page is a fault of its own."""
    hog = "import time\nx = []\nwhile True: x.append(bytearray(2**21)); time.sleep(0.02)"
    async with boxes(Runtime.GVISOR) as box, asyncio.timeout(TIMEOUT_S):
        await box.link.call("start", {"text": f"unset PYTHONHOME; python3 -c '{hog}'; echo $? >/tmp/ended"})
        await _relieve(box)
        while not (ended := await box.sh("cat /tmp/ended 2>/dev/null; sleep 0.02")):
            pass
        assert ended == "137\n"
        assert _refusals(box) == 0


async def test_what_the_kernel_remembers_of_files_is_no_use_of_memory(boxes: Boxes) -> None:
    """Read far more than the limit, through the page cache, and nobody is to be killed; then a hog still is."""
    async with boxes(Runtime.GVISOR) as box, asyncio.timeout(3 * TIMEOUT_S), asyncio.TaskGroup() as tasks:
        relieved = tasks.create_task(_relieve(box), name="relief")
        await box.sh("truncate -s 1G /workspace/large")
        for _ in range(3):
            assert await box.sh("cat /workspace/large | wc -c") == f"{2**30}\n"
        await asyncio.sleep(0.2)
        assert not relieved.done()
        await box.link.call(
            "start", {"text": "unset PYTHONHOME; python3 -c 'x = bytearray(2**30)'; echo $? >/tmp/ended"}
        )
        while not (ended := await box.sh("cat /tmp/ended 2>/dev/null; sleep 0.02")):
            pass
        assert ended == "137\n"


async def test_a_workspace_outlives_its_sandbox(boxes: Boxes, runtime: Runtime, substrate: LocalMachine) -> None:
    workspace = WorkspaceId(f"ws-{runtime}")
    await substrate.create_workspace(workspace, 64 * MIB)
    claim = Claim(cpus=1, processes=32, workspace=workspace)
    for expected in ("", "first\n"):
        async with boxes(runtime) as box:
            await substrate.configure(box.id, claim, box.link)
            await substrate.configure(box.id, claim, box.link)
            assert await box.sh("cat /workspace/note 2>/dev/null") == expected
            assert await box.code("echo first >/workspace/note") == 0
            with pytest.raises(Conflict, match="in use"):
                await substrate.delete_workspace(workspace)
    await substrate.delete_workspace(workspace)


@pytest.mark.parametrize("child_runtime", [Runtime.GVISOR, Runtime.CONTAINER])
async def test_a_shared_workspace_is_coherent_both_ways(boxes: Boxes, runtime: Runtime, child_runtime: Runtime) -> None:
    async with boxes(runtime) as parent:
        assert await parent.code("echo 1 >/workspace/note") == 0
        async with boxes(child_runtime) as child:
            shared = await parent.substrate.share_workspace(parent.id)
            await child.substrate.configure(child.id, Claim(cpus=1, processes=32, workspace=shared), child.link)
            assert (
                await child.sh("cat /workspace/note; stat -c %u /workspace/note; echo 22 >/workspace/note") == "1\n0\n"
            )
            assert await parent.sh("cat /workspace/note; mv /workspace/note /workspace/moved") == "22\n"
            assert await child.sh("ls /workspace; rm /workspace/moved") == "moved\n"
            assert await parent.sh("ls /workspace") == ""
        assert await parent.code("echo still >/workspace/here") == 0


@pytest.mark.parametrize("missing", [Runtime.KATA, Runtime.FIRECRACKER])
async def test_an_unknown_runtime_says_why_and_never_falls_back(substrate: LocalMachine, missing: Runtime) -> None:
    with pytest.raises(HostUnsupported, match="not available on this host"):
        await substrate.create(_name("missing"), Template(runtime=missing), CREDENTIALS)


@pytest.mark.parametrize("image", ["/", "/etc", "../../..", "nothing"])
async def test_only_the_operators_images_can_be_named(substrate: LocalMachine, image: str) -> None:
    with pytest.raises(InvalidSpec, match="no image"):
        await substrate.create(_name("image"), Template(image=image), CREDENTIALS)


def _smallest_rootfs(target: Path) -> None:
    """A shell, what it is linked to, and nothing else."""
    listing = subprocess.run(["ldd", "/bin/sh"], check=True, capture_output=True, text=True).stdout
    for file in ["/bin/sh", "/bin/cat", *re.findall(r"(/\S+) \(0x", listing)]:
        place = target / Path(file).relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(file).resolve(), place)
    (target / "etc").mkdir()
    (target / "etc/marker").write_text("an image without Python\n", encoding="ascii")


async def test_a_rootfs_directory_without_python_is_an_image(substrate: LocalMachine, runtime: Runtime) -> None:
    image = substrate.data_dir / "images/library/smallest"
    if not image.exists():
        _smallest_rootfs(image)
    sandbox = _name(f"rootfs-{runtime}")
    try:
        await substrate.create(sandbox, Template(runtime=runtime, image="smallest", disk_bytes=64 * MIB), CREDENTIALS)
        async with await substrate.dial(sandbox, CREDENTIALS) as link:
            answer = await link.call(
                "sh", {"text": "cat /etc/marker; echo x >/etc/mine; test -e /usr/bin/python3 || echo no"}
            )
    finally:
        await substrate.destroy(sandbox)
    assert answer["stdout"] == "an image without Python\nno\n"
    assert not (image / "etc/mine").exists(), "an image is never written to"


async def test_two_servers_on_one_host_leave_each_others_sandboxes_alone(
    boxes: Boxes, substrate: LocalMachine, host: Provisioned, data_dir: Path
) -> None:
    other = LocalMachine(standin_settings(data_dir, host))
    async with boxes(Runtime.CONTAINER) as box:
        assert box.id in await substrate.survivors(), "the control"
        assert box.id not in await other.survivors()


async def test_two_servers_on_one_host_share_no_owner(boxes: Boxes, host: Provisioned, data_dir: Path) -> None:
    other, sandbox = LocalMachine(standin_settings(data_dir, host)), _name("neighbour")
    async with boxes(Runtime.CONTAINER) as box:
        try:
            await other.create(sandbox, Template(runtime=Runtime.CONTAINER, disk_bytes=64 * MIB), CREDENTIALS)
            found = [record.load(box.paths), record.load(Layout(data_dir).sandbox(sandbox))]
        finally:
            await other.destroy(sandbox)
    assert len({known.block for known in found if known is not None}) == 2


async def test_a_new_server_finds_and_reaches_the_sandbox_of_the_old(
    boxes: Boxes, runtime: Runtime, host: Provisioned
) -> None:
    async with boxes(runtime) as box:
        await box.link.close()  # the stand-in serves one connection at a time
        successor = LocalMachine(standin_settings(box.substrate.data_dir, host))
        assert box.id in await successor.survivors()
        assert successor.alive(box.id)
        async with await successor.dial(box.id, CREDENTIALS) as link:
            await successor.configure(box.id, CLAIM, link)
        await successor.destroy(box.id)
        assert is_gone(box.substrate.data_dir, box.id), _traces(box)


async def test_what_a_runtime_built_is_used_and_removed_after_its_program_is_gone(
    boxes: Boxes, runtime: Runtime, host: Provisioned
) -> None:
    async with boxes(runtime) as box, asyncio.timeout(TIMEOUT_S):
        await box.link.close()  # the stand-in serves one connection at a time
        settings = standin_settings(box.substrate.data_dir, host)
        successor = LocalMachine(replace(settings, runsc=None, runc=None))
        with pytest.raises(HostUnsupported, match="not available on this host: no run"):
            await successor.create(_name("new"), Template(runtime=runtime), CREDENTIALS)
        async with await successor.dial(box.id, CREDENTIALS) as link:
            await successor.configure(box.id, CLAIM, link)
        known = record.load(box.paths)
        assert known is not None
        os.kill(known.pid, signal.SIGKILL)
        await successor.death(box.id)
        await successor.destroy(box.id)
        assert is_gone(box.substrate.data_dir, box.id), _traces(box)


async def test_a_sandbox_whose_record_cannot_be_read_now_is_ended_and_its_ids_stay_its_own(boxes: Boxes) -> None:
    async with boxes(Runtime.CONTAINER) as box:
        known = record.load(box.paths)
        assert known is not None
        assert _traces(box)["processes"], "the control"
        box.paths.record.unlink()
        box.paths.record.mkdir()  # as with an I/O error: it is there, and cannot be read
        with pytest.raises(SandboxFailed, match="Is a directory"):
            await box.substrate.destroy(box.id)
        left = _traces(box)
        assert [kind for kind, is_there in left.items() if is_there and kind != "loop device"] == ["directory"]
        assert box.id in await box.substrate.survivors()
        box.paths.record.rmdir()
        record.save(box.paths, known)
        await box.substrate.destroy(box.id)
        assert is_gone(box.substrate.data_dir, box.id), _traces(box)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sandbox": "x"}', "\xff"])
async def test_a_sandbox_whose_record_cannot_be_read_is_found_and_removed(
    boxes: Boxes, host: Provisioned, text: str
) -> None:
    async with boxes(Runtime.CONTAINER) as box:
        await box.link.close()
        box.paths.record.write_text(text, encoding="latin-1")
        successor = LocalMachine(standin_settings(box.substrate.data_dir, host))
        assert not successor.alive(box.id), "nothing is known about it"
        assert box.id in await successor.survivors()
        assert all(_traces(box).values()), "the control: it still runs"
        await successor.destroy(box.id)
        assert is_gone(box.substrate.data_dir, box.id), _traces(box)


async def test_what_is_no_sandbox_at_all_does_not_stop_a_start(substrate: LocalMachine) -> None:
    home = Layout(substrate.data_dir).sandboxes
    (home / "t-file").write_text("stray", encoding="ascii")
    (home / "t-link").symlink_to("/etc")
    strays = {SandboxId("t-file"), SandboxId("t-link")}
    assert strays <= await substrate.survivors()
    for stray in strays:
        await substrate.destroy(stray)
    assert not strays & await substrate.survivors()
    assert Path("/etc/passwd").exists()


async def test_a_loop_device_that_is_still_attached_is_a_trace_and_goes(substrate: LocalMachine) -> None:
    sandbox = _name("loop")
    paths = Layout(substrate.data_dir).sandbox(sandbox)
    paths.root.mkdir()
    paths.image.write_bytes(bytes(MIB))
    subprocess.run(["losetup", "--find", str(paths.image)], check=True)
    shutil.rmtree(paths.root)
    assert sandbox in await substrate.survivors(), "its file is gone, the device is not"
    await substrate.destroy(sandbox)
    assert is_gone(substrate.data_dir, sandbox)
    assert sandbox not in await substrate.survivors()
    assert not any(Path(file).is_relative_to(paths.root) for file in loop.backing_files().values())


@pytest.mark.parametrize("place", ["", "sandboxes"])
async def test_data_may_lie_on_another_file_system(
    substrate: LocalMachine, host: Provisioned, data_dir: Path, runtime: Runtime, place: str
) -> None:
    sandbox = _name(f"elsewhere-{runtime}")
    home = data_dir / "home"
    (home / place).mkdir(parents=True)
    mount.tmpfs(home / place, size_bytes=512 * MIB, inodes=10_000, mode=0o711)
    subprocess.run(["mount", "-o", "remount,exec", str(home / place)], check=True)
    try:
        elsewhere = LocalMachine(replace(standin_settings(substrate.data_dir, host), data_dir=home))
        await elsewhere.create(sandbox, Template(runtime=runtime, disk_bytes=64 * MIB), CREDENTIALS)
        async with await elsewhere.dial(sandbox, CREDENTIALS) as link:
            answer = await link.call("sh", {"text": "echo fine >/workspace/file; cat /workspace/file"})
        assert await elsewhere.survivors() == {sandbox}
        await elsewhere.destroy(sandbox)
        assert is_gone(home, sandbox)
        assert await elsewhere.survivors() == frozenset()
    finally:
        mount.unmount_under(home)
    assert answer["stdout"] == "fine\n"
