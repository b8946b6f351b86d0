"""Telling users of this machine whom to trust: the CA in `/etc/k8e/k8e.yaml`, where clients of any generation look."""

from __future__ import annotations

import base64
from pathlib import Path

from k8e import whole

__all__ = ["announce", "config_text"]

MARK = "# Written by the k8e server at each start. Take this line away to keep a version of your own."


def config_text(ca: bytes, endpoint: str) -> str:
    """A configuration of the shape that Kubernetes clients know, with only what is true here."""
    data = base64.b64encode(ca).decode()
    return (
        f"{MARK}\napiVersion: v1\nkind: Config\nclusters:\n- name: k8e-sandbox\n  cluster:\n"
        f"    certificate-authority-data: {data}\n    server: https://{endpoint}\n"
    )


def announce(path: Path, ca: bytes, endpoint: str) -> bool:
    """Write the file, unless it is somebody else's; says whether it is ours. Raises: OSError."""
    try:
        if not path.read_text(errors="replace").startswith(MARK):
            return False
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    whole.replace(path, config_text(ca, endpoint).encode(), mode=0o644, durable=True)
    return True
