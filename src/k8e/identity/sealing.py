"""Values at rest: sealed with a key that only this server's user can read.

AES-256-GCM with a fresh nonce each time. The context (whose value it is and what it is called) is authenticated
too, so a sealed value moved to another row, owner or name does not open.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from k8e.errors import StoreFailed

__all__ = ["FileSealer"]

_KEY_BYTES = 32
_NONCE_BYTES = 12
_FORMAT = b"\x01"


class FileSealer:
    """Seals with the key in a file, which is made at first use."""

    def __init__(self, path: Path) -> None:
        """Read or make the key. Raises: StoreFailed when the file is there but is not a key."""
        self._path = path
        self._cipher = AESGCM(_load(path))

    def seal(self, plain: bytes, *, context: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _FORMAT + nonce + self._cipher.encrypt(nonce, plain, _FORMAT + context)

    def unseal(self, sealed: bytes, *, context: bytes) -> bytes:
        """What was sealed under the same context. Raises: StoreFailed."""
        kind, nonce, body = sealed[:1], sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, body, kind + context)
        except (InvalidTag, ValueError) as error:
            raise StoreFailed(
                f"a sealed value does not open with {self._path}: put the right key file back, or set the secret anew"
            ) from error


def _load(path: Path) -> bytes:
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return _make(path)
    if len(key) != _KEY_BYTES:
        raise StoreFailed(
            f"{path} is not a key of {_KEY_BYTES} bytes: restore it, or remove it and set all secrets anew"
        )
    path.chmod(0o600)
    return key


def _make(path: Path) -> bytes:
    """Written whole and for its owner only before it has its name; whoever was first wins."""
    key = secrets.token_bytes(_KEY_BYTES)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return _load(path)
    finally:
        temporary.unlink()
    return key
