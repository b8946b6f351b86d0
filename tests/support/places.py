"""Where tests find what they share, and the variables that a run tells its processes by."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["IMAGES_VARIABLE", "RUN_DIR_VARIABLE", "TOOLS_DIR"]

TOOLS_DIR: Final = Path("/var/lib/k8e")
"""What set-up built: shared by all tests and by the server of this machine; sandboxes are not."""

RUN_DIR_VARIABLE: Final = "K8E_TEST_DIR"
"""The directory of a whole run. Its path is short, because the paths of unix sockets are limited to 107 bytes."""

IMAGES_VARIABLE: Final = "K8E_TEST_IMAGES"
"""The images that a run has prepared for all its data directories."""
