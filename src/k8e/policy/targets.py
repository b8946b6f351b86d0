"""Which addresses may be dialled for a sandbox at all, whatever a list says.

Some are never reached: this machine, its neighbours on the link, the cloud's metadata services, our own made-up ranges.
Private networks are reached only where the list names them as a network, or where the operator's own configuration
names the host. Documentation ranges are not private: some networks keep their mirrors there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache

from k8e.model import EgressPolicy, NetRule

__all__ = ["Address", "LocalRoute", "covers", "is_private", "never", "normal", "refusal"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
LocalRoute = Callable[[Address], str]
"""Why an address leads back to this machine, or to nobody; '' where it leads away. Routes change, so it is asked each time."""
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # most clouds
        "169.254.170.2",  # ECS task credentials
        "168.63.129.16",  # Azure's wire server: a public address that means the host
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
        "fd00:ec2::254",  # EC2
        "fd20:ce::254",  # Google
    )
)

_NEVER: tuple[tuple[_Network, str], ...] = tuple(
    (ipaddress.ip_network(text), why)
    for text, why in (
        ("0.0.0.0/8", "an unspecified address"),
        ("127.0.0.0/8", "a loopback address"),
        ("169.254.0.0/16", "a link-local address"),
        ("100.64.0.0/10", "an address of the sandboxes' own network"),
        ("198.18.0.0/15", "an address that only stands for a name"),
        ("192.0.0.0/24", "a reserved address"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
        ("::/128", "an unspecified address"),
        ("::1/128", "a loopback address"),
        ("fe80::/10", "a link-local address"),
        ("ff00::/8", "a multicast address"),
    )
)

_PRIVATE: tuple[_Network, ...] = tuple(
    ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")
)
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_TEREDO = ipaddress.IPv6Network("2001::/32")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_V4_COMPATIBLE = ipaddress.IPv6Network("::/96")


@lru_cache(maxsize=4096)
def normal(text: str) -> Address | None:
    """The address that is really meant: without a zone, and IPv4 where IPv6 only wraps it; None if it is none."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return _unwrapped(address) if isinstance(address, ipaddress.IPv6Address) else address


def _unwrapped(address: ipaddress.IPv6Address) -> Address:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    low = int(address) & 0xFFFFFFFF
    if address in _NAT64 or (address in _V4_COMPATIBLE and low > 1):
        return ipaddress.IPv4Address(low)
    return address


def _as_dialled(address: str) -> Address:
    """What the kernel is given: an address that is only IPv4 in the form of IPv6 is dialled as IPv4."""
    given = ipaddress.ip_address(address.partition("%")[0])
    mapped = given.ipv4_mapped if isinstance(given, ipaddress.IPv6Address) else None
    return mapped or given


@lru_cache(maxsize=4096)
def _network(text: str) -> _Network:
    return ipaddress.ip_network(text)


def never(address: Address) -> str:
    """Why nobody may reach this address, whatever is listed; '' if somebody may."""
    if address in _METADATA:
        return "a cloud's metadata service"
    for network, why in _NEVER:
        if address in network:
            return why
    if address in _TEREDO:
        return "a tunnel's address"
    if isinstance(address, ipaddress.IPv6Address) and not (address in _GLOBAL_V6 or is_private(address)):
        return "a reserved address"
    return ""


def is_private(address: Address) -> bool:
    """Whether it belongs to a network that is not everybody's."""
    return any(address in network for network in _PRIVATE)


def covers(rule: NetRule, address: Address, port: int) -> bool:
    """Whether a network's rule speaks of this address and port."""
    return rule.port in {None, port} and address in _network(rule.network)


def refusal(address: str, *, route: LocalRoute, policy: EgressPolicy, may_be_private: bool, port: int) -> str:
    """Why this address must not be dialled; '' if it may be.

    Meant for every address just before it is dialled: those that a name resolved to, and raw ones alike.
    """
    target = normal(address)
    if target is None:
        return "not an address"
    if why := never(target):
        return why
    # An address that wraps another one may be routed by itself.
    if why := route(target) or route(_as_dialled(address)):
        return why
    networks = [rule for rule in policy.rules if isinstance(rule, NetRule) and covers(rule, target, port)]
    if any(rule.deny for rule in networks):
        return "a network that the list denies"
    if is_private(target) and not (may_be_private or networks):
        return "a private address"
    return ""
