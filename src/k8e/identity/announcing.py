"""Telling users of this machine whom to trust, in the files where clients of any generation look for it.

What is there already and does not begin with our mark is somebody else's, and so is whatever is no plain file: it stays
as it is. Links are not followed.
"""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

from k8e import whole

__all__ = ["announce", "certificate_text", "config_text"]

MARK = "# Written by the k8e server at each start. Take this line away to keep a version of your own."


def config_text(ca: bytes, endpoint: str) -> str:
    """A configuration of the shape that Kubernetes clients know, with only what is true here."""
    data = base64.b64encode(ca).decode()
    return (
        f"{MARK}\napiVersion: v1\nkind: Config\nclusters:\n- name: k8e-sandbox\n  cluster:\n"
        f"    certificate-authority-data: {data}\n    server: https://{endpoint}\n"
    )


def certificate_text(ca: bytes) -> str:
    """The CA in PEM, whose readers skip what stands before its first line."""
    return f"{MARK}\n{ca.decode('ascii')}"


def announce(path: Path, text: str) -> bool:
    """Write the file for everybody to read, unless it is somebody else's; whether it is ours. Raises: OSError."""
    try:
        if not _is_ours(path):
            return False
    except FileNotFoundError:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)
    whole.replace(path, text.encode(), mode=0o644, durable=True)
    return True


def _is_ours(path: Path) -> bool:
    """Raises: FileNotFoundError when there is nothing."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return False
    # Between the look and this it may have become something else, which must be neither followed nor waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(len(MARK)) == MARK.encode()
