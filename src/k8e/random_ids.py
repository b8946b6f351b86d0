"""Identifiers that nobody can guess: 128 random bits, lower-case base32, with a prefix that tells people what they hold."""

from __future__ import annotations

import base64
import secrets

__all__ = ["new_id"]


def new_id(prefix: str) -> str:
    """A fresh identifier such as `sess-7k3…`."""
    return f"{prefix}-{base64.b32encode(secrets.token_bytes(16)).decode().rstrip('=').lower()}"
