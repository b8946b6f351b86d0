"""Who calls, who may, and who approved: values that the SDK gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ApiKeyInfo", "Approval", "Identity", "LoginInfo", "NewApiKey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A question to somebody else, and the answer; times are unix seconds."""

    approval_id: str
    status: str
    """pending, approved, rejected or expired."""
    session_id: str = ""
    action: str = ""
    asked_by: str = ""
    decided_by: str = ""
    reason: str = ""
    asked_at: int = 0
    expires_at: int = 0
    decided_at: int = 0
    owner: str = ""
    is_gate: bool = False
    """Whether a call waits for it; `action` is then what the server says of that call, else the agent's own words."""

    @property
    def approved(self) -> bool:
        return self.status == "approved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the server takes a caller for."""

    owner: str
    """Whose sessions these are."""
    identity: str
    role: str
    """user, approver or admin."""
    via: str
    """loopback, unix, key or certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyInfo:
    """A key without its text; `expires_at` 0 means never."""

    name: str
    role: str
    owner: str
    created_at: int
    expires_at: int
    expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginInfo:
    """A certificate that was issued, and where it is kept."""

    endpoint: str
    cert_dir: str
    valid_days: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewApiKey:
    info: ApiKeyInfo
    key: str = field(repr=False)
    """Its text, which nobody can ask for again."""
