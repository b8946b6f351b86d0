"""Root inside a sandbox has no power over its own network: what would be changed is the host's, or gVisor's alone.

Each probe is also run as the host's root in a slot like the sandbox's, where it succeeds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.egress import netns
from k8e.egress.layout import Home
from k8e.model import Runtime
from tests.support.cells import OWNER, Cell
from tests.support.wires import Wire, plain

pytestmark = pytest.mark.anyio

_PROBE = r"""
import fcntl, os, socket, struct, sys

def sockaddr(address):
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))

def interface(request, argument):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, request, struct.pack("16s24s", b"eth0", argument))

def address():
    interface(0x8916, sockaddr("100.64.0.99"))

def flags():
    interface(0x8914, struct.pack("H", 0))

def arp():
    entry = sockaddr("100.64.0.1") + struct.pack("H14s", 1, b"\2\0\0\0\0\1") + struct.pack("i", 2) + b"\0" * 16 + b"eth0".ljust(16, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8955, entry)

def route():
    body = struct.pack("BBBBBBBBI", socket.AF_INET, 32, 0, 0, 254, 4, 253, 1, 0)
    body += struct.pack("HH4s", 8, 1, socket.inet_aton("192.0.2.7"))
    body += struct.pack("HHI", 8, 4, socket.if_nametoindex("eth0"))
    netlink(24, 0x605, body)

def link():
    name = struct.pack("HH8s", 12, 3, b"added")
    kind = struct.pack("HH8s", 12, 1, b"veth")
    netlink(16, 0x605, struct.pack("BBHiII", 0, 0, 0, 0, 0, 0) + name + struct.pack("HH", 4 + len(kind), 18) + kind)

def netlink(kind, flags, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.send(struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        answer = s.recv(65536)
        code = struct.unpack("i", answer[16:20])[0]
        if struct.unpack("H", answer[4:6])[0] != 2 or code:
            raise OSError(-code, os.strerror(-code))

def frames():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300).close()

def packets():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).close()

def ping():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()

def mark():
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, 36, 1)

def transparent():
    with socket.socket() as s:
        s.setsockopt(socket.SOL_IP, 19, 1)
        s.bind(("203.0.113.5", 0))

def settings():
    with open("/proc/sys/net/ipv4/ip_forward", "w") as file:
        file.write("1")

def ipv6():
    with open("/proc/sys/net/ipv6/conf/all/disable_ipv6", "w") as file:
        file.write("0")

try:
    globals()[sys.argv[1]]()
    print("done")
except OSError as error:
    print("denied", error)
"""

_PROBES = (
    "address",
    "flags",
    "arp",
    "route",
    "link",
    "frames",
    "packets",
    "ping",
    "mark",
    "transparent",
    "settings",
    "ipv6",
)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with plain() as wire, wire.stack:
        yield wire


@pytest.mark.parametrize("probe", _PROBES)
def test_the_hosts_root_can_in_a_slot(probe: str, wire: Wire) -> None:
    argv = [sys.executable, "-c", _PROBE, probe]
    done = netns.inside(wire.slot.namespace, lambda: subprocess.run(argv, capture_output=True, text=True, check=True))
    assert done.stdout == "done\n"


@pytest.mark.parametrize("probe", _PROBES)
async def test_root_inside_cannot(probe: str, runtime: Runtime, cell: Cell, engine_dir: Path) -> None:
    answer = await cell.argv("python3", "-c", _PROBE, probe)
    if probe == "settings" and runtime is Runtime.GVISOR:
        # gVisor lets its root change a setting of its own stack, behind which the namespace stays as it was.
        sandbox = cell.engine.get_session(OWNER, cell.id).sandbox
        assert sandbox is not None
        assert _forwarding(Home.of(engine_dir).namespace(sandbox)) == "0"
    else:
        assert answer.stdout.startswith(b"denied"), answer


def _forwarding(path: Path) -> str:
    namespace = netns.open_held(path)
    try:
        return netns.inside(namespace, lambda: Path("/proc/sys/net/ipv4/ip_forward").read_text().strip())
    finally:
        os.close(namespace)


async def test_low_ports_are_everybodys(cell: Cell) -> None:
    code = "import socket; s = socket.create_server(('0.0.0.0', 80)); print(s.getsockname()[1])"
    assert (await cell.argv("python3", "-c", code)).stdout == b"80\n"
    assert (await cell.argv("python3", "-c", code, user="1000")).stdout == b"80\n"
