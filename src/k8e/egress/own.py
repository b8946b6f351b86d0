"""The host's own addresses, as its kernel lists them: no sandbox may reach the host by any of them."""

from __future__ import annotations

import re
import time
from ipaddress import IPv6Address
from pathlib import Path

__all__ = ["OwnAddresses", "local_ipv4", "local_ipv6"]

_FRESH_S = 1.0
_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


def local_ipv4(fib_trie: str) -> frozenset[str]:
    """From /proc/net/fib_trie."""
    return frozenset(_LOCAL.findall(fib_trie))


def local_ipv6(if_inet6: str) -> frozenset[str]:
    """From /proc/net/if_inet6."""
    return frozenset(str(IPv6Address(int(line.split()[0], 16))) for line in if_inet6.splitlines() if line.strip())


class OwnAddresses:
    """Read anew when older than a second: interfaces come and go."""

    def __init__(self, proc: Path = Path("/proc/self/net")) -> None:
        # SAFETY: this is the main thread's namespace, the host's; threads that enter others do not change it.
        self._proc = proc
        self._known: frozenset[str] = frozenset()
        self._read_at = -_FRESH_S

    def __call__(self) -> frozenset[str]:
        now = time.monotonic()
        if now - self._read_at >= _FRESH_S:
            self._known = local_ipv4(self._text("fib_trie")) | local_ipv6(self._text("if_inet6"))
            self._read_at = now
        return self._known

    def _text(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(encoding="ascii")
        except FileNotFoundError:
            return ""  # a kernel without IPv6
