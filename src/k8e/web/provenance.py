"""Where a request says it comes from and whom it thinks it talks to: what no web page may fake is checked here.

Pure. A page can make its reader's browser send requests to this machine, and with a name that it points here
(DNS rebinding) even read the answers. The browser tells on it: `Host` is the page's name, `Origin` the page's place.
Pages on this machine are no better: whatever somebody develops or previews has an origin on `localhost`, too.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

__all__ = ["Provenance", "is_json", "is_loopback"]

HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
JSON = frozenset({"application/json", "application/a2a+json"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What one door believes."""

    hosts: frozenset[str] = frozenset()
    """Names of this machine that requests may use besides those of its loopback; lower case, without ports."""
    origins: frozenset[str] = frozenset()
    """Web pages that may call, as browsers write them: `https://app.example`."""
    any_address: bool = False
    """Whether every literal address will do as a host: no page can have one for its name."""

    def believes_host(self, host: str | None) -> bool:
        found = HOST.fullmatch(host or "")
        if found is None:
            return False
        name = found["name"].strip("[]").rstrip(".").lower()
        return is_loopback(name) or name in self.hosts or (self.any_address and is_address(name))

    def believes_origin(self, origin: str | None, host: str | None) -> bool:
        """A request without an origin comes from a program; of pages on this machine only those from here may call."""
        if origin is None or origin in self.origins:
            return True
        found = HOST.fullmatch(host or "")
        is_here = found is not None and is_loopback(found["name"].strip("[]").lower())
        return is_here and origin == f"http://{host}".lower()


def is_json(content_type: str | None) -> bool:
    """Whether a body says that it is JSON: a page can send other kinds without asking first."""
    return (content_type or "").partition(";")[0].strip().lower() in JSON


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
