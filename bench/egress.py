"""The network's data plane beside a direct link between the same namespaces, and beside a neighbour's flood."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.lab import Lab
from bench.rows import Row, no_more_than
from bench.series import Series, interleaved
from k8e.model import MIB
from tests.support import egress_peer
from tests.support.egress_lab import DIRECT, SERVER, Guest, PlaneLab, policy
from tests.support.egress_peer import lookup

__all__ = ["egress"]

_ADDED_MS = 3.0
_OF_DIRECT = 0.4
_OF_QUIET = 0.5
_CHANGE_MS = 50.0
_NAME = "bulk.test"
_PORT, _FLOODED_PORT = 9000, 9001
_PEER = str(Path(egress_peer.__file__))
_PATIENCE_S = 60.0
_SETTLE_S = 0.5
_FLOODS = {"100 bulk streams": ("hoard", 100, 100), "10,000 connections": ("knock", 10_000, 1_000)}
"""By name: what to do, how often, and how often in a quick run."""


def egress(lab: Lab) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="k8e-bench-egress-") as directory, _net(Path(directory)) as net:
        yield from _latency(lab, net)
        yield from _downloads(lab, net)
        yield _crowd(lab, net)
        yield _policy_change(lab, net)
        for name, (what, full, quick) in _FLOODS.items():
            yield _beside(lab, net, name, what, lab.scaled(full, quick))


class _Net:
    """Two sandboxes' namespaces and two servers behind the plane; one of the sandboxes also has a direct link."""

    def __init__(self, plane: PlaneLab) -> None:
        self.plane = plane
        plane.names[_NAME] = (SERVER,)
        self.guest = plane.add("measured", policy(f"{_NAME}:{_PORT}"), is_direct=True)
        self.flooding = plane.add("flooding", policy(f"{_NAME}:{_FLOODED_PORT}"))
        for port in (_PORT, _FLOODED_PORT):
            self._ready("serve", str(port))

    def run(self, what: str, host: str, amount: int) -> str:
        argv = (_PEER, what, host, str(_PORT), str(amount))
        output, _ = self.plane.spawn(self.guest.slot.namespace, *argv).communicate(timeout=_PATIENCE_S)
        return output.decode()

    def ping_ms(self, host: str) -> float:
        return float(json.loads(self.run("ping", host, 2))[-1])

    def megabytes_per_s(self, host: str, amount: int) -> float:
        return float(self.run("download", host, amount))

    @contextlib.contextmanager
    def flood(self, what: str, amount: int) -> Iterator[None]:
        process = self.plane.spawn(self.flooding.slot.namespace, _PEER, what, _NAME, str(_FLOODED_PORT), str(amount))
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise AssertionError(f"the flood does not begin: {what}")
        time.sleep(_SETTLE_S)
        try:
            yield
            if process.poll() is not None:
                raise AssertionError(f"the flood was over before the measurement was: {what}")
        finally:
            process.kill()
            process.wait()
            self.plane.gone(self.flooding)

    def _ready(self, *argv: str) -> None:
        process = self.plane.spawn(self.plane.server, _PEER, *argv)
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise AssertionError(f"a server does not start: {argv}")


@contextlib.contextmanager
def _net(directory: Path) -> Iterator[_Net]:
    plane = PlaneLab(directory)
    try:
        yield _Net(plane)
    finally:
        plane.close()


def _latency(lab: Lab, net: _Net) -> Iterator[Row]:
    seen = interleaved({"direct": lambda: net.ping_ms(DIRECT), "proxied": lambda: net.ping_ms(_NAME)}, n=lab.n)
    yield Row(
        name="connect and first byte, added by the proxy",
        ours=seen["proxied"],
        theirs=seen["direct"],
        beside="a direct link",
        value=seen["proxied"].median - seen["direct"].median,
        unit="ms more",
        bound=_ADDED_MS,
    )


def _downloads(lab: Lab, net: _Net) -> Iterator[Row]:
    amount = lab.scaled(1024, 128) * MIB
    pairs = [
        (net.megabytes_per_s(_NAME, amount), net.megabytes_per_s(DIRECT, amount)) for _ in range(max(3, lab.n // 3))
    ]
    ours, theirs = (Series.of(list(each), unit="MB/s") for each in zip(*pairs, strict=True))
    yield _share("download through the proxy", ours, theirs, beside="a direct link", least=_OF_DIRECT)


def _crowd(lab: Lab, net: _Net) -> Row:
    size = lab.scaled(500, 100)
    right: int = json.loads(net.run("crowd", _NAME, size))["right"]
    return no_more_than(f"silent among {size} connections", size - right + 0.0, 0.5, unit="connections")


def _policy_change(lab: Lab, net: _Net) -> Row:
    """From the call to the reset inside."""
    allowed, none = net.guest.member.policy, policy()
    took = []
    for _ in range(lab.n):
        with _echoing(net.guest) as sock:
            began = time.perf_counter()
            net.plane.set_policy(net.guest, none)
            with contextlib.suppress(ConnectionResetError):
                if sock.recv(1) == b"":
                    raise AssertionError("closed, not cut")
            took.append((time.perf_counter() - began) * 1000)
        net.plane.set_policy(net.guest, allowed)
    series = Series.of(took)
    return Row(name="policy change, until it is felt", ours=series, value=series.p95, unit="ms p95", bound=_CHANGE_MS)


@contextlib.contextmanager
def _echoing(guest: Guest) -> Iterator[socket.socket]:
    address = guest.do(lambda: str(lookup(_NAME).answer[0][0]))
    sock = guest.do(lambda: socket.create_connection((address, _PORT), timeout=_PATIENCE_S))
    with sock:
        sock.sendall(bytes(8) + b"x")
        if sock.recv(1) != b"x":
            raise AssertionError("the echo is silent")
        yield sock


def _beside(lab: Lab, net: _Net, name: str, what: str, amount: int) -> Row:
    size = lab.scaled(1024, 128) * MIB
    quiet, loud = [], []
    for _ in range(max(3, lab.n // 5)):
        quiet.append(net.megabytes_per_s(_NAME, size))
        with net.flood(what, amount):
            loud.append(net.megabytes_per_s(_NAME, size))
    a, b = Series.of(loud, unit="MB/s"), Series.of(quiet, unit="MB/s")
    return _share(f"download beside {name}", a, b, beside="a quiet neighbour", least=_OF_QUIET)


def _share(name: str, ours: Series, theirs: Series, *, beside: str, least: float) -> Row:
    return Row(
        name=name,
        ours=ours,
        theirs=theirs,
        beside=beside,
        value=ours.median / theirs.median,
        bound=least,
        is_floor=True,
    )
