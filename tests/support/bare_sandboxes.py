"""The local substrate alone, with a stand-in agent: what is tested is the sandbox, not what runs in it."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from k8e.model import MIB, Runtime, SandboxId, Template
from k8e.setup.provision import Provisioned
from k8e.substrate.local.layout import Layout, SandboxPaths
from k8e.substrate.local.machine import LocalMachine
from k8e.substrate.local.settings import LocalSettings
from k8e.wire.aio import Link
from tests.support.credentials import CREDENTIALS
from tests.support.leaks import Lend

__all__ = ["Bare", "Boxes", "boxes", "standin_settings", "substrate"]

_STANDIN = Path(__file__).with_name("standin_agent.py")
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare:
    """A booted sandbox and a link to its stand-in agent."""

    id: SandboxId
    link: Link
    substrate: LocalMachine
    paths: SandboxPaths

    async def sh(self, text: str) -> str:
        """What the command printed on both streams."""
        answer = await self.link.call("sh", {"text": text}, timeout_s=_PATIENCE_S)
        return f"{answer['stdout']}{answer['stderr']}"

    async def code(self, text: str) -> int:
        answer = await self.link.call("sh", {"text": text}, timeout_s=_PATIENCE_S)
        return int(str(answer["code"]))


Boxes = Callable[..., AbstractAsyncContextManager[Bare]]


def standin_settings(data_dir: Path, host: Provisioned) -> LocalSettings:
    """Settings whose agent is the stand-in, on the real bundle's interpreter."""
    bundle = data_dir / "standin"
    if not bundle.exists():
        shutil.copytree(host.bundle.path, bundle, symlinks=True)
        shutil.copy(_STANDIN, bundle / "standin.py")
        (bundle / "standin.py").chmod(0o644)
    argv = (*host.bundle.argv[: host.bundle.argv.index("-S")], "-S", "-s", "-B", "/.k8e/standin.py")
    return LocalSettings(
        data_dir=data_dir,
        runsc=Path(host.runsc.path) if host.runsc else None,
        runc=host.runc,
        bundle=bundle,
        agent_argv=argv,
        agent_env=host.bundle.env,
    )


@pytest.fixture(scope="session")
def substrate(host: Provisioned, lend: Lend) -> LocalMachine:
    return LocalMachine(standin_settings(lend("bare"), host))


@pytest.fixture
def boxes(substrate: LocalMachine) -> Boxes:
    """Makes sandboxes: `async with boxes(runtime) as box`."""

    @asynccontextmanager
    async def make(
        runtime: Runtime, *, memory_bytes: int = 256 * MIB, disk_bytes: int = 64 * MIB
    ) -> AsyncIterator[Bare]:
        sandbox = SandboxId(f"t-{secrets.token_hex(6)}")
        template = Template(runtime=runtime, memory_bytes=memory_bytes, disk_bytes=disk_bytes)
        try:
            await substrate.create(sandbox, template, CREDENTIALS)
            async with await substrate.dial(sandbox, CREDENTIALS) as link:
                paths = Layout(substrate.data_dir).sandbox(sandbox)
                yield Bare(id=sandbox, link=link, substrate=substrate, paths=paths)
        finally:
            await substrate.destroy(sandbox)

    return make
