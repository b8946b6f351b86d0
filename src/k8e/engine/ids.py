"""Names that callers choose for their sessions and tenants."""

from __future__ import annotations

import re

from k8e.errors import InvalidSpec

__all__ = ["check_client_id", "check_tenant"]

# Also safe as a file name and as a Kubernetes label, because it becomes both.
_CLIENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_client_id(text: str, *, field: str = "session_id") -> str:
    """A name chosen by a caller, or InvalidSpec."""
    if not _CLIENT_ID.fullmatch(text):
        raise InvalidSpec("use 1-128 letters, digits, '.', '_' or '-', starting with a letter or digit", field=field)
    return text


def check_tenant(text: str) -> str:
    """A tenant label, or InvalidSpec."""
    if not _TENANT.fullmatch(text):
        raise InvalidSpec(
            "use 1-63 letters, digits, '.', '_' or '-', starting with a letter or digit", field="tenant_id"
        )
    return text
