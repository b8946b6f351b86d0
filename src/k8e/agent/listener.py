"""The unix socket that the host dials: whoever dials proves itself by a secret that was given to this sandbox alone."""

from __future__ import annotations

import os
import socket
from _operator import _compare_digest  # what `hmac` has, without the import of `hashlib`

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

__all__ = ["SecretListener"]

_BACKLOG = 8
_SECRET = "secret"  # the name of a file
"""Beside the socket; it holds the secret until it is read."""


class SecretListener:
    def __init__(self, path: str) -> None:
        """Raises: OSError without a secret."""
        self._path = path
        self._secret = _read_secret(os.path.join(os.path.dirname(path), _SECRET)).encode()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.fileno = self._socket.fileno

    def listen(self) -> None:
        self._socket.bind(self._path)
        self._socket.listen(_BACKLOG)

    def accept(self) -> socket.socket:
        """Raises: OSError."""
        return self._socket.accept()[0]

    def knows(self, hello: Mapping[str, Any]) -> bool:
        """Whether its first frame says that it may dial this sandbox."""
        secret = hello.get("secret")
        return isinstance(secret, str) and _compare_digest(secret.encode("utf-8", "replace"), self._secret)


def _read_secret(path: str) -> str:
    """Nothing in the sandbox has run yet that could have read it; whoever wrote it removes it, too."""
    with open(path, encoding="ascii") as file:
        secret = file.read().strip()
    try:
        os.unlink(path)
    except OSError:
        pass
    if not secret:
        raise OSError("%s is empty" % path)
    return secret
