"""What code inside may not do, as root, on every runtime. Each probe is first shown to succeed outside.

A probe is a program that prints OPEN when it got what it wanted and DENIED with the error otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.errors import K8eError, SandboxLost
from k8e.lifecycle import Phase
from k8e.model import Code, Command, Language, Reason, Runtime
from tests.support.cells import OWNER, Cell, CellFactory

pytestmark = pytest.mark.anyio

_WRAPPER = """
import ctypes, errno, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *args):
    result = libc.syscall(number, *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def attempt():
{body}
try:
    attempt()
except OSError as error:
    print("DENIED", errno.errorcode.get(error.errno, error.errno))
else:
    print("OPEN")
"""

_PROBES = {
    "read a host file": "open({secret!r}).read()",
    "signal a host process": "os.kill({victim}, 0)",
    "find a host process": """
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                line = open(f'/proc/{{pid}}/cmdline', 'rb').read()
            except OSError:
                continue
            if {marker!r}.encode() in line and int(pid) != os.getpid() and b'import' not in line:
                return
        raise OSError(errno.ESRCH, 'not there')
    """,
    "trace a host process": "syscall(101, 16, {victim}, 0, 0); os.waitpid({victim}, 0x40000000); syscall(101, 17, {victim}, 0, 0)",
    "mount a file system": "syscall(165, b'none', b'/tmp', b'tmpfs', 0, 0)",
    "make a device node": "os.mknod('/tmp/k8e-probe-{tag}', 0o20600, os.makedev(1, 3)); os.unlink('/tmp/k8e-probe-{tag}')",
    "open a device of the host": "os.close(os.open('/dev/loop-control', os.O_RDWR))",
    "keep a key in a kernel keyring": "syscall(248, b'user', b'k8e-{tag}', b'x', 1, ctypes.c_long(-2))",
    "open a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()",
    "open a packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()",
    "reach an abstract socket": "socket.socket(socket.AF_UNIX).connect('\\0' + {abstract!r})",
    "reach a host port": "socket.create_connection(('127.0.0.1', {port}), 20).close()",
    "set the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME))",
    "write a kernel setting": "os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY))",
    "read kernel messages": "syscall(103, 3, ctypes.create_string_buffer(64), 64)",
    "swap on a file": "syscall(167, b'/nonexistent', 0)",
    "reboot": "syscall(169, 0xfee1dead, 672274793, 0, 0)",
    "open a handle by number": """
        handle = struct.pack('IiQ', 8, 1, 2)
        try:
            os.close(syscall(304, os.open('/', os.O_RDONLY), handle, 0))
        except OSError as error:
            if error.errno != errno.ESTALE: raise
    """,
    "use an io_uring": "os.close(syscall(425, 8, ctypes.create_string_buffer(120)))",
    "load a program into the kernel": """
        try:
            syscall(321, 0, ctypes.create_string_buffer(128), 128)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.E2BIG): raise
    """,
    "load a kernel module": """
        try:
            syscall(175, b'not a module', 12, b'')
        except OSError as error:
            if error.errno not in (errno.ENOEXEC, errno.EBADMSG): raise
    """,
    "make a user namespace": "syscall(272, 0x10000000)",
    "enter a namespace": "syscall(308, os.open('/proc/self/ns/uts', os.O_RDONLY), 0)",
    "count events of the whole machine": """
        attr = struct.pack('IIQ', 1, 128, 0) + bytes(112)
        os.close(syscall(298, attr, -1, 0, -1, 0))
    """,
}
# What a plain root on this host may be refused for reasons of its own; the control then has nothing to show.
_NO_CONTROL = {
    "swap on a file": "ENOENT here is already past the permission check",
    "reboot": "CAD_OFF is harmless but changes the host",
    "load a kernel module": "a kernel without modules, as on some clouds, answers ENOSYS to everybody",
}


# What the sentry answers by itself, without the host's kernel: its own log, and namespaces that only it knows.
_VIRTUAL = {
    (Runtime.GVISOR, "read kernel messages"),
    (Runtime.GVISOR, "make a user namespace"),
    (Runtime.GVISOR, "enter a namespace"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Things on the host that a probe may look for."""
    tag = uuid.uuid4().hex[:12]
    marker = f"k8e-victim-{tag}"
    secret = tmp_path_factory.mktemp("host") / "secret"
    secret.write_text("the host's own")
    secret.chmod(0o644)
    # One process that never forks: whoever looks for what a test has left would take its child for that.
    victim = subprocess.Popen(["bash", "-c", f"exec -a {marker} sleep 600"])
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0k8e-{tag}")
    abstract.listen()
    port = socket.create_server(("127.0.0.1", 0))
    yield {
        "tag": tag,
        "marker": marker,
        "secret": str(secret),
        "victim": victim.pid,
        "abstract": f"k8e-{tag}",
        "port": port.getsockname()[1],
    }
    victim.kill()
    victim.wait()
    abstract.close()
    port.close()


@pytest.mark.parametrize("name", [name for name in _PROBES if name not in _NO_CONTROL])
def test_the_probe_succeeds_outside(name: str, world: dict[str, object]) -> None:
    program = _program(name, world)
    outside = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    if name == "open a packet socket" and "EPERM" in outside.stdout:
        pytest.skip("this host refuses packet sockets to everybody")
    assert outside.stdout == "OPEN\n"


@pytest.mark.shares_sandbox
@pytest.mark.parametrize("name", _PROBES)
async def test_the_probe_is_denied_inside(name: str, world: dict[str, object], cell: Cell, runtime: Runtime) -> None:
    inside = await cell.py(_program(name, world))
    assert inside.stdout.startswith(b"DENIED") or (runtime, name) in _VIRTUAL, (inside.stdout, inside.stderr)


async def test_a_session_cannot_find_anothers_files(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime) as mine, cells(runtime) as other:
        await other.write("/workspace/mine-alone", b"x")
        await other.write("/tmp/mine-alone", b"x")
        search = (
            "find / -path /usr -prune -o -path /proc -prune -o -name mine-alone -print 2>/dev/null; "
            "find /proc/*/root/ -maxdepth 2 -name mine-alone 2>/dev/null"
        )
        assert b"/workspace/mine-alone" in (await other.sh(search)).stdout
        assert (await mine.sh(search)).stdout == b""


async def test_a_session_sees_only_its_own_processes(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime) as mine, cells(runtime) as other:
        look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        await other.sh("sleep 987 >/dev/null 2>&1 &")
        async with asyncio.timeout(60):
            while b"sleep 987" not in (await other.sh(look)).stdout:
                pass
        assert b"sleep 987" not in (await mine.sh(look)).stdout


@pytest.mark.shares_sandbox
async def test_only_loopback_and_the_link_to_the_router_exist(cell: Cell) -> None:
    listing = await cell.py("import socket; print([name for _, name in socket.if_nameindex()])")
    assert listing.stdout == b"['lo', 'eth0']\n"
    # Of the host's own there is none: it has an eth0, too, with another address.
    own = await cell.py(
        "import fcntl, socket, struct\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "print(socket.inet_ntoa(fcntl.ioctl(s, 0x8915, struct.pack('256s', b'eth0'))[20:24]))"
    )
    assert own.stdout.startswith(b"100.64."), own
    echo = await cell.py(
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(s.getsockname()).close()\nprint('ok')"
    )
    assert echo.stdout == b"ok\n"


async def test_root_inside_is_nobody_outside(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime) as mine, cells(runtime) as other:
        assert (await mine.sh("id -u")).stdout == b"0\n"
        uids = [_uids_outside(cell) for cell in (mine, other)]
        assert all(uid >= 65536 for uid in uids[0] | uids[1])
        assert not uids[0] & uids[1]


@pytest.mark.shares_sandbox
async def test_the_hostname_of_the_host_cannot_be_changed(cell: Cell) -> None:
    before = socket.gethostname()
    control = subprocess.run(
        ["unshare", "--uts", "sh", "-c", "hostname changed && hostname"], capture_output=True, text=True, check=True
    )
    assert control.stdout == "changed\n"
    await cell.sh("hostname changed || true")
    assert socket.gethostname() == before


@pytest.mark.shares_sandbox
async def test_a_setuid_program_gives_nothing(cell: Cell, tmp_path: Path) -> None:
    steps = (
        "cp /bin/id {d}/rootid && chown 0:0 {d}/rootid && chmod 4755 {d}/rootid && chmod 755 {d} && "
        "python3 -c \"import os; os.setgid(1234); os.setuid(1234); os.execv('{d}/rootid', ['id', '-u'])\""
    )
    control = subprocess.run(
        ["sh", "-c", steps.format(d=tmp_path)], capture_output=True, text=True, check=False, cwd="/"
    )
    parents_ok = all(parent.stat().st_mode & 0o001 for parent in tmp_path.parents)
    if parents_ok:
        assert control.stdout == "0\n"
    inside = await cell.sh("mkdir -p /tmp/s && " + steps.format(d="/tmp/s"))
    assert inside.stdout == b"1234\n"


@pytest.mark.shares_sandbox
async def test_a_crash_leaves_no_core_on_the_host(cell: Cell) -> None:
    limit = await cell.py("import resource; print(resource.getrlimit(resource.RLIMIT_CORE))")
    assert limit.stdout == b"(0, 0)\n"
    crashed = await cell.py("import os; os.abort()")
    assert crashed.outcome.exit_code == 134


async def test_replacing_the_agents_socket_misleads_nobody(cell: Cell) -> None:
    planted = await cell.sh(
        "cd /.k8e-run 2>/dev/null && rm -rf ./* && ln -s /var/run/docker.sock agent.sock; "
        "mkdir -p /.k8e-run/x 2>/dev/null; chmod 777 /.k8e-run 2>/dev/null; true"
    )
    assert planted.outcome.exit_code == 0
    assert (await cell.sh("echo still here")).stdout == b"still here\n"


async def test_flooding_the_agents_socket_directory_is_bounded(cell: Cell) -> None:
    flood = await cell.sh(
        "head -c 64M /dev/zero > /.k8e-run/big; for i in $(seq 2000); do true > /.k8e-run/f$i || break; done 2>/dev/null; "
        "du -sk /.k8e-run | cut -f1; ls /.k8e-run | wc -l"
    )
    kib, count = (int(number) for number in flood.stdout.split())
    assert kib <= 256
    assert count <= 64
    assert (await cell.sh("echo still here")).stdout == b"still here\n"


@pytest.mark.shares_sandbox
async def test_init_has_nothing_to_write_to(cell: Cell) -> None:
    links = await cell.sh("for n in 0 1 2; do readlink /proc/1/fd/$n || echo denied; done")
    assert set(links.stdout.split()) <= {b"/dev/null", b"denied"}


@pytest.mark.shares_sandbox
async def test_init_cannot_be_traced_by_commands(cell: Cell) -> None:
    attach = (
        "    import subprocess; child = subprocess.Popen(['sleep', '9'])\n"
        "    try: syscall(101, 16, {pid}, 0, 0)\n"
        "    finally: child.kill()"
    )
    assert (await cell.py(_WRAPPER.format(body=attach.format(pid="child.pid")))).stdout == b"OPEN\n"
    assert (await cell.py(_WRAPPER.format(body=attach.format(pid="1")))).stdout.startswith(b"DENIED")
    assert (await cell.sh("echo still here")).stdout == b"still here\n"


async def test_killing_init_costs_at_most_ones_own_session(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime) as victim, cells(runtime) as neighbour:
        await victim.sh("kill -9 1; kill -STOP 1; kill -SEGV 1", timeout_s=2.0)
        if _is_active(victim):
            with contextlib.suppress(SandboxLost):  # gVisor lets root kill init: the session is lost, and it is said so
                after = await victim.sh("echo still here")
                assert after.stdout == b"still here\n" or after.outcome.reason is Reason.SANDBOX_LOST
        assert (await neighbour.sh("echo unharmed")).stdout == b"unharmed\n"


async def test_the_file_api_follows_links_only_inside(cell: Cell, world: dict[str, object]) -> None:
    secret = str(world["secret"])
    await cell.sh(
        f"ln -s {secret} /workspace/direct; ln -s /proc/1/root{secret} /workspace/by-root; ln -s / /workspace/top"
    )
    assert Path(secret).read_text() == "the host's own"
    for path in ("/workspace/direct", "/workspace/by-root", f"/workspace/top{secret}", f"/workspace/../../..{secret}"):
        with pytest.raises(K8eError):
            await cell.read(path)
    await cell.write("/workspace/plain", b"fine")
    await cell.sh("ln -s plain /workspace/inside")
    assert await cell.read("/workspace/inside") == b"fine"


async def test_the_file_api_cannot_be_raced_out_of_the_sandbox(cell: Cell, world: dict[str, object]) -> None:
    secret = str(world["secret"])
    await cell.write("/workspace/plain", b"fine")
    await cell.engine.start_run(
        OWNER,
        cell.id,
        Command(
            what=Code(
                Language.PYTHON,
                "import os, time\nwhile True:\n    time.sleep(0.001)\n"
                f"    for target in ('/workspace/plain', {secret!r}, '/proc/1/root{secret}'):\n"
                "        os.symlink(target, '/workspace/.new'); os.rename('/workspace/.new', '/workspace/flip')\n",
            )
        ),
    )
    seen: set[bytes] = set()
    reads = 0
    while reads < 60 or not seen:
        reads += 1
        with contextlib.suppress(K8eError):
            seen.add(await cell.read("/workspace/flip"))
    assert seen == {b"fine"}


def _is_active(cell: Cell) -> bool:
    return cell.engine.get_session(OWNER, cell.id).phase is Phase.ACTIVE


def _program(name: str, world: dict[str, object]) -> str:
    body = textwrap.dedent(_PROBES[name]).strip().format(**world)
    return _WRAPPER.format(body=textwrap.indent(body, "    "))


def _uids_outside(cell: Cell) -> set[int]:
    sandbox = cell.engine.get_session(OWNER, cell.id).sandbox
    found = set()
    mine = f"k8e/{sandbox}/*/cgroup.procs"  # not every group of the host: others come and go meanwhile
    for file in [path for under in (mine, f"*/{mine}") for path in Path("/sys/fs/cgroup").glob(under)]:
        for pid in file.read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                status = Path(f"/proc/{pid}/status").read_text()
                found.add(int(status.partition("Uid:")[2].split()[0]))
    assert found
    return found
