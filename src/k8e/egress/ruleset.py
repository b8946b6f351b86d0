"""What the router's kernel lets through, as text: loaded once, never touched for a sandbox.

Only two things ever get past it: TCP, all of which ends at the proxy, and DNS to the gateway. There is no connection
tracking, no forwarding, and no state but two rate limits per source.
"""

from __future__ import annotations

from ipaddress import IPv4Address

__all__ = ["FIRST_INDEX", "GATEWAY", "LAST_INDEX", "MARK", "PROXY_PORT", "TABLE", "address", "routing", "ruleset"]

GATEWAY = "100.64.0.1"
"""Gateway and resolver of every sandbox."""
PROXY_PORT = 15001
MARK = 1
TABLE = 100

FIRST_INDEX = 2
LAST_INDEX = 2**22 - 2
"""100.64.0.0/10 without its first two addresses and its last."""

_BASE = int(IPv4Address("100.64.0.0"))
_CONNECTIONS_PER_S = 500
_CONNECTIONS_AT_ONCE = 1000
_QUESTIONS_PER_S = 200
_QUESTIONS_AT_ONCE = 400
_SOURCES = 65_536

_RULES = f"""\
table inet k8e
delete table inet k8e
table inet k8e {{
    set connecting {{ type ipv4_addr; size {_SOURCES}; flags dynamic,timeout; timeout 10s; }}
    set asking {{ type ipv4_addr; size {_SOURCES}; flags dynamic,timeout; timeout 10s; }}

    chain arriving {{
        type filter hook prerouting priority raw; policy drop;
        iif lo accept
        meta nfproto != ipv4 drop
        # Anti-spoofing: each sandbox has a route of its own, so an address is at home on one interface only.
        fib saddr . iif oif missing drop
        fib daddr type {{ broadcast, multicast, anycast }} drop
        tcp flags & (fin|syn|rst|ack) == syn update @connecting {{ ip saddr limit rate over {_CONNECTIONS_PER_S}/second burst {_CONNECTIONS_AT_ONCE} packets }} drop
        ip daddr {GATEWAY} meta l4proto {{ tcp, udp }} th dport 53 update @asking {{ ip saddr limit rate over {_QUESTIONS_PER_S}/second burst {_QUESTIONS_AT_ONCE} packets }} drop
        ip daddr {GATEWAY} udp dport 53 accept
        meta l4proto tcp accept
    }}

    chain redirecting {{
        type filter hook prerouting priority mangle; policy accept;
        iif lo accept
        ip daddr {GATEWAY} tcp dport 53 accept
        # Without a listener the rule ends here: the packet stays unmarked, and nobody takes it.
        meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:{PROXY_PORT} meta mark set {MARK} accept
    }}

    chain delivering {{
        type filter hook input priority filter; policy drop;
        iif lo accept
        meta mark {MARK} meta l4proto tcp accept
        ip daddr {GATEWAY} meta l4proto {{ tcp, udp }} th dport 53 accept
    }}

    chain forwarding {{
        type filter hook forward priority filter; policy drop;
    }}

    chain leaving {{
        type filter hook output priority filter; policy drop;
        oif lo accept
        # Answers only: nothing in this namespace opens a connection.
        meta nfproto ipv4 tcp flags & (fin|syn|rst|ack) != syn accept
        ip saddr {GATEWAY} udp sport 53 accept
    }}
}}
"""  # noqa: S608 - nft's language, not SQL


def ruleset() -> str:
    """For `nft -f -`: replaces what there was in one transaction."""
    return _RULES


def routing() -> str:
    """For `ip -batch -`: marked packets are delivered here, whatever their destination."""
    return (
        f"link set lo up\n"
        f"address add {GATEWAY}/32 dev lo\n"
        f"rule add fwmark {MARK} lookup {TABLE}\n"
        f"route add local 0.0.0.0/0 dev lo table {TABLE}\n"
    )


def address(index: int) -> str:
    """The address of the sandbox in slot `index`."""
    return str(IPv4Address(_BASE + index))
