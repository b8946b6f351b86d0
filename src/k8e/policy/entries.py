"""The entries of a list as people write them.

host            that host, on the web's ports 80 and 443
host:port       that host, on that port, any protocol
*.domain        every name below the domain, but not itself; also with :port
10.1.0.0/16     addresses as such, on every port; also with :port
!entry          never: a denial wins over everything, and one without a port is for every port
"""

from __future__ import annotations

import ipaddress
import re
from functools import cache

from publicsuffixlist import PublicSuffixList

from k8e.errors import InvalidSpec
from k8e.model import HostRule, NetRule
from k8e.policy import targets
from k8e.policy.names import BadName, canonical

__all__ = ["parse", "text"]

_FIELD = "allowed_hosts"
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_WIDEST = 8
"""Bits of prefix: anything wider is most of the internet, which has a mode of its own."""


def parse(entry: str) -> HostRule | NetRule:
    """What an entry means.

    Raises:
        InvalidSpec: it means nothing, or something that no list may say; the text gives the reason.
    """
    try:
        return _parse(entry.strip())
    except BadName as error:
        raise InvalidSpec(f"{entry!r}: {error.reason}", field=_FIELD) from error


def text(rule: HostRule | NetRule) -> str:
    """A rule as an entry: `parse` gives the rule back (but for the operator's own mark, which no entry can set)."""
    what = rule.network if isinstance(rule, NetRule) else f"{'*.' if rule.subdomains else ''}{rule.name}"
    return f"{'!' if rule.deny else ''}{what}{f':{rule.port}' if rule.port is not None else ''}"


def _parse(entry: str) -> HostRule | NetRule:
    deny = entry.startswith("!")
    body = entry.removeprefix("!").strip()
    if "://" in body:
        raise BadName("a URL; write only its host")
    if body.startswith("[") or body.count(":") > 1:
        raise BadName("IPv6 is off in sandboxes")
    what, colon, digits = body.partition(":")
    port = _port(digits) if colon else None
    if _is_address(what):
        return _net_rule(what, port=port, deny=deny)
    return _host_rule(what, port=port, deny=deny)


def _port(digits: str) -> int:
    if not _PORT.fullmatch(digits) or int(digits) > 65535:
        raise BadName(f"{digits!r} is no port: 1 to 65535")
    return int(digits)


def _is_address(what: str) -> bool:
    address, slash, bits = what.partition("/")
    return (bool(slash) and bits.isdigit()) or targets.normal(address) is not None


def _net_rule(what: str, *, port: int | None, deny: bool) -> NetRule:
    try:
        network = ipaddress.IPv4Network(what)
    except ValueError as error:
        raise BadName(str(error)) from error
    if not deny:
        if network.prefixlen < _WIDEST:
            raise BadName(f"wider than /{_WIDEST}; ask for the open network instead")
        first, last = (targets.never(network[index]) for index in (0, -1))
        if first and first == last:
            raise BadName(f"{first}: no sandbox may reach it")
    return NetRule(network=str(network), port=port, deny=deny)


def _host_rule(what: str, *, port: int | None, deny: bool) -> HostRule:
    if what == "*":
        raise BadName("everything is not a host; ask for the open network instead")
    subdomains = what.startswith("*.")
    if "*" in what.removeprefix("*."):
        raise BadName("a star may only be the whole first label")
    if "/" in what:
        raise BadName("neither a host nor a network; paths cannot be listed")
    name = canonical(what.removeprefix("*."))
    if name == "localhost" or name.endswith(".localhost"):
        raise BadName("the sandbox's own name for itself; it needs no entry")
    if subdomains and not deny and _public_suffixes().is_public(name):
        raise BadName(f"anybody can register names below {name}, so it cannot be allowed as a whole")
    return HostRule(name=name, subdomains=subdomains, port=port, deny=deny)


@cache
def _public_suffixes() -> PublicSuffixList:
    # Reading the list takes 40 ms: only once somebody writes a star. A domain that is on no list (a company's own)
    # is not public.
    return PublicSuffixList(accept_unknown=False)
