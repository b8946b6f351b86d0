"""The image that sandboxes run from, prepared once for a whole run: `python -m tests.support.prepared_images DIRECTORY`.

Every data directory prepares its own, seconds of work in a sandbox. Nothing writes to a prepared image, so the data
directories of tests may have links to one. Where no run has prepared any, each data directory still makes its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from k8e.model import Runtime, SandboxId, Template
from k8e.server import local_settings
from k8e.settings import ServerSettings
from k8e.setup.provision import ensure
from k8e.setup.report import Stderr
from k8e.substrate.local.layout import Layout
from k8e.substrate.local.machine import LocalMachine
from tests.support.credentials import CREDENTIALS
from tests.support.places import IMAGES_VARIABLE, TOOLS_DIR

__all__ = ["use_prepared_images"]


def use_prepared_images(data_dir: Path) -> None:
    """Before anything is started on this data directory."""
    prepared = os.environ.get(IMAGES_VARIABLE)
    if prepared is None:
        return
    images = Layout(data_dir).images
    images.mkdir(mode=0o700, parents=True, exist_ok=True)
    for image in Path(prepared).iterdir():
        if not (link := images / image.name).is_symlink():
            link.symlink_to(image)


async def _prepare(data_dir: Path) -> None:
    host = ensure(TOOLS_DIR, Stderr(), env=os.environ)
    substrate = LocalMachine(local_settings(ServerSettings(data_dir=data_dir), host))
    sandbox = SandboxId("prepares-images")
    try:
        await substrate.create(
            sandbox, Template(runtime=Runtime.GVISOR if host.runsc else Runtime.CONTAINER), CREDENTIALS
        )
    finally:
        await substrate.destroy(sandbox)


if __name__ == "__main__":
    asyncio.run(_prepare(Path(sys.argv[1])))
