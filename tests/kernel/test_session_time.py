"""A session's time begins when it has its sandbox."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.model import Limits, Runtime, SandboxId, SessionSpec, Template
from k8e.server import local_settings
from k8e.settings import ServerSettings
from k8e.setup.provision import Provisioned
from k8e.substrate.local.machine import LocalMachine
from k8e.wire.aio import Credentials
from tests.support.cells import OWNER
from tests.support.substrates import over

pytestmark = pytest.mark.anyio


class _Noting(LocalMachine):
    """Tells when it was done with the last sandbox."""

    done_at = 0.0

    async def create(self, sandbox: SandboxId, template: Template, credentials: Credentials) -> None:
        await super().create(sandbox, template, credentials)
        self.done_at = time.time()


async def test_waiting_for_a_sandbox_uses_up_nothing_of_a_sessions_time(data_dir: Path, host: Provisioned) -> None:
    substrate = _Noting(local_settings(ServerSettings(data_dir=data_dir), host))
    settings = EngineSettings(data_dir=data_dir)
    limits = Limits(ttl_s=1000.0, idle_timeout_s=100.0)
    async with Engine.open(settings, over(substrate)) as engine:
        made = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER, limits=limits))
        assert made.created_at < substrate.done_at
        assert made.expires_at >= substrate.done_at + limits.ttl_s
        assert made.idle_at >= substrate.done_at + limits.idle_timeout_s
        await engine.destroy_all()
