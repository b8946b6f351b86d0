"""What would stop set-up half-way, or the server after it: looked for before anything is built."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from k8e.errors import Conflict, HostUnsupported

__all__ = [
    "OLDEST_KERNEL",
    "Space",
    "kernel_version",
    "nearest",
    "require_free",
    "require_kernel",
    "require_space",
    "require_writable",
]

OLDEST_KERNEL = (5, 19)
PORTS_TRIED = 100
COMMAND_CHARACTERS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Bytes that will be written somewhere."""

    path: Path
    size: int
    moved_by: str
    """The setting that names another place."""


def kernel_version(release: str) -> tuple[int, int]:
    """Major and minor of a kernel's release text."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def require_kernel() -> None:
    """Raises: HostUnsupported where overlays on id-mapped layers do not exist yet."""
    release = os.uname().release
    if kernel_version(release) < OLDEST_KERNEL:
        wanted = ".".join(map(str, OLDEST_KERNEL))
        raise HostUnsupported(f"this is Linux {release}, and sandboxes need {wanted} or newer: boot a newer kernel")


def nearest(path: Path) -> Path:
    """The path, or what there is of it."""
    return next(each for each in (path, *path.parents) if each.exists())


def require_writable(path: Path, fix: str) -> None:
    """Raises: HostUnsupported with the fix where nothing can be written below the path."""
    there = nearest(path)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise HostUnsupported(f"cannot write {there}: {fix}")


def require_space(wanted: Sequence[Space]) -> None:
    """Raises: HostUnsupported where a disk has less free than what is wanted on it together."""
    by_disk: dict[int, list[Space]] = {}
    for each in wanted:
        by_disk.setdefault(nearest(each.path).stat().st_dev, []).append(each)
    for on_one in by_disk.values():
        place, size = nearest(on_one[0].path), sum(each.size for each in on_one)
        free = shutil.disk_usage(place).free
        if free < size:
            settings = " or ".join(dict.fromkeys(each.moved_by for each in on_one))
            raise HostUnsupported(
                f"set-up needs {size / 1e9:.1f} GB on the disk of {place}, and {free / 1e9:.1f} GB are free: "
                f"free some, or name a directory on another disk with {settings}"
            )


def require_free(addresses: Iterable[tuple[str, int]]) -> None:
    """Raises: Conflict, saying who has it and which one is free, where the server could not listen."""
    for host, port in addresses:
        trouble = _refusal(host, port)
        if trouble is None:
            continue
        if trouble.errno != errno.EADDRINUSE:
            raise Conflict(
                f"the server cannot listen on {_address(host, port)} ({trouble.strerror}): "
                "set K8E_SANDBOX_LISTEN to an address of this machine"
            )
        other = next((each for each in range(port + 1, port + PORTS_TRIED) if _refusal(host, each) is None), 0)
        raise Conflict(
            f"the server cannot listen on {_address(host, port)}, which {_listener(port) or 'another program'} has: "
            f"end that one, or set K8E_SANDBOX_LISTEN={_address(host, other)} and run this again"
        )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refusal(host: str, port: int) -> OSError | None:
    """Why nobody can listen there; None where one can."""
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                # Without listening: two who try the same port at the same time do not disturb each other.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
    except OSError as error:
        return error
    return None


def _listener(port: int) -> str:
    """Which program listens on a port, as far as we may know."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(str(each.readlink()) in sockets for each in descriptors.iterdir()):
                words = (descriptors.parent / "cmdline").read_bytes().split(b"\0")
                command = b" ".join(words).decode("utf-8", "replace").strip()
                return f"process {descriptors.parent.name} ({command[:COMMAND_CHARACTERS]})"
        except OSError:
            continue  # it ended, or is none of our business
    return ""


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text(encoding="ascii").splitlines()[1:]]
        except OSError:
            continue
        # Column 1 is the local address, 3 the state (0A listens), 9 the socket's inode.
        found |= {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    return found
