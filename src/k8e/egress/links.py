"""Slots: a sandbox's namespace with one interface, whose other end is in the router.

A slot is used once. Its namespace belongs to the host's own user namespace, so root in a sandbox has no power over its
interface, addresses and routes.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from k8e.egress import netns
from k8e.egress.ruleset import GATEWAY, address

__all__ = ["Slot", "ip_batch", "make", "set_kernel"]

_SYSCTLS = Path("/proc/sys/net")
_TIMEOUT_S = 10.0
_SANDBOX_SETTINGS = {
    "ipv6/conf/all/disable_ipv6": 1,
    "ipv6/conf/default/disable_ipv6": 1,
    "ipv4/ip_unprivileged_port_start": 0,
    "ipv4/ip_forward": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A namespace that waits for its sandbox; closing its descriptor removes it, interface and all."""

    index: int
    namespace: int

    @property
    def address(self) -> str:
        return address(self.index)

    def close(self) -> None:
        os.close(self.namespace)


def make(index: int, router: int) -> Slot:
    """Blocking; some milliseconds. Raises: OSError."""
    namespace = netns.make(lambda: _furnish(index, router))
    slot = Slot(index=index, namespace=namespace)
    try:
        netns.inside(router, lambda: ip_batch(_router_end(index)))
    except BaseException:
        slot.close()
        raise
    return slot


def _furnish(index: int, router: int) -> None:
    # Before there is an interface: it would get a link-local address by itself.
    set_kernel(_SANDBOX_SETTINGS)
    ip_batch(_sandbox_end(index, f"/proc/{os.getpid()}/fd/{router}"))


def _sandbox_end(index: int, router: str) -> str:
    return (
        f"link set lo up\n"
        f"link add eth0 type veth peer name v{index} netns {router}\n"
        f"address add {address(index)}/32 dev eth0\n"
        f"link set eth0 up\n"
        f"route add {GATEWAY} dev eth0 scope link\n"
        f"route add default via {GATEWAY}\n"
    )


def _router_end(index: int) -> str:
    """The peer address makes the route by which the kernel knows on which interface a source is at home."""
    return f"address add {GATEWAY} peer {address(index)}/32 dev v{index}\nlink set v{index} up\n"


def ip_batch(commands: str) -> None:
    """Run them in the namespace of the calling thread. Raises: OSError."""
    _run(["ip", "-batch", "-"], commands)


def set_kernel(settings: dict[str, int]) -> None:
    """Settings below /proc/sys/net, of the calling thread's namespace; what this kernel lacks cannot be on."""
    for name, value in settings.items():
        path = _SYSCTLS / name
        if path.exists():
            path.write_text(str(value), encoding="ascii")


def _run(argv: list[str], words: str) -> None:
    try:
        done = subprocess.run(argv, input=words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{argv[0]}: not done within {_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise OSError(f"{argv[0]}: {done.stderr.strip() or f'exit {done.returncode}'}")
