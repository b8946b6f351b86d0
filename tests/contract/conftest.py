"""Things that contract tests put into sandboxes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cells import OWNER, Cell

__all__ = ["kill_sandbox", "wheel"]


@pytest.fixture(scope="session")
def wheel() -> bytes:
    """A real, tiny wheel, built here."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = "hello_wheel-1.0.dist-info"
        archive.writestr("hello_wheel.py", "WORD = 'hello'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hello-wheel\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: k8e\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"hello_wheel.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return buffer.getvalue()


@pytest.fixture
def kill_sandbox() -> Callable[[Cell], None]:
    """Kills every process of a session's sandbox, as the host's OOM killer would."""

    def kill(cell: Cell) -> None:
        sandbox = cell.engine.get_session(OWNER, cell.id).sandbox
        mine = f"k8e/{sandbox}/*/cgroup.procs"  # not every group of the host: others come and go meanwhile
        for procs in [path for under in (mine, f"*/{mine}") for path in Path("/sys/fs/cgroup").glob(under)]:
            for pid in procs.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    return kill
