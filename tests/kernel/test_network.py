"""Sandboxes of both runtimes on the real network: what they reach, and what is left when they are gone."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from k8e.egress.client import EgressClient
from k8e.egress.layout import Home
from k8e.egress.ruleset import GATEWAY
from k8e.model import MIB, Claim, EgressMode, EgressPolicy, HostRule, NetRule, Runtime, SandboxId, Template
from k8e.setup.provision import Provisioned
from k8e.substrate.local.layout import Layout
from k8e.substrate.local.machine import LocalMachine
from tests.support.bare_sandboxes import Bare, standin_settings
from tests.support.credentials import CREDENTIALS
from tests.support.engines import RUNTIMES
from tests.support.upstreams import CLOSED, OPEN, Upstream

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def _started(data_dir: Path, host: Provisioned) -> AsyncIterator[LocalMachine]:
    async with EgressClient.open(data_dir) as network:
        yield LocalMachine(standin_settings(data_dir, host), network)


async def _boot(substrate: LocalMachine, runtime: Runtime) -> Bare:
    sandbox = SandboxId(f"t-{secrets.token_hex(6)}")
    await substrate.create(sandbox, Template(runtime=runtime, memory_bytes=256 * MIB, disk_bytes=64 * MIB), CREDENTIALS)
    link = await substrate.dial(sandbox, CREDENTIALS)
    return Bare(id=sandbox, link=link, substrate=substrate, paths=Layout(substrate.data_dir).sandbox(sandbox))


async def _end(box: Bare) -> None:
    await box.link.close()
    await box.substrate.destroy(box.id)


def _policy(far: Upstream) -> EgressPolicy:
    rules = (NetRule(network=f"{far.address}/32", port=OPEN), HostRule(name="allowed.test"))
    return EgressPolicy(mode=EgressMode.LIST, rules=rules)


def _echo(address: str, port: int) -> str:
    """A command that prints what the far end gives back."""
    code = (
        f"import socket; c = socket.create_connection(('{address}', {port}), timeout=20); "
        "c.sendall(b'hello'); print(c.recv(5).decode())"
    )
    return f'/.k8e/python/bin/python3 -c "{code}" 2>&1 || /usr/bin/python3 -c "{code}" 2>&1'


async def _echoes(box: Bare, address: str, port: int) -> bool:
    return "hello" in (await box.sh(_echo(address, port))).split()


async def _asks(box: Bare, name: str) -> str:
    return await box.sh(f"getent ahostsv4 {name} || echo none")


@pytest.mark.parametrize("runtime", RUNTIMES, ids=str)
async def test_a_sandbox_reaches_what_it_may_and_nothing_else(
    runtime: Runtime, data_dir: Path, host: Provisioned, far: Upstream
) -> None:
    async with _started(data_dir, host) as substrate:
        box = await _boot(substrate, runtime)
        assert not await _echoes(box, far.address, OPEN)
        await substrate.configure(box.id, Claim(cpus=1, processes=64, egress=_policy(far)), box.link)
        assert await _echoes(box, far.address, OPEN)
        assert not await _echoes(box, far.address, CLOSED)
        assert (await box.sh("cat /etc/resolv.conf")).startswith(f"nameserver {GATEWAY}\n")
        assert (await _asks(box, "allowed.test")).startswith("198.18.")
        assert await _asks(box, "forbidden.test") == "none\n"
        await substrate.set_egress(box.id, EgressPolicy())
        assert not await _echoes(box, far.address, OPEN)
        assert Home.of(data_dir).attached() == {box.id}
        await _end(box)
        assert Home.of(data_dir).attached() == frozenset()
