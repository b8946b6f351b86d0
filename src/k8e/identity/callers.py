"""Who is calling, as every door hands it on: whose things, by which proof, allowed how much."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from k8e.model import OwnerId

__all__ = ["Caller", "Role", "local_caller", "uid_owner"]

LOCAL = frozenset({"unix", "loopback"})


class Role(StrEnum):
    USER = "user"
    """Everything with what is the owner's own."""
    APPROVER = "approver"
    """Only sees and decides the owner's approvals: the person beside an agent."""
    ADMIN = "admin"
    """Also speaks for any owner, by naming it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    owner: OwnerId
    """Whose things these are; the border that everything is checked against."""
    identity: str
    """The one that asks: several may act for one owner, and none may approve what it asked for itself."""
    role: Role = Role.USER
    via: str
    """The proof: loopback, unix, key or certificate."""
    key_id: str = ""
    """Which key it was, for key and certificate; a name alone may be given again."""
    pid: int = 0
    """The process at the other end, where the kernel named it (unix); 0 elsewhere."""

    @property
    def is_local_user(self) -> bool:
        """Whether the kernel itself said which user of this machine this is."""
        return self.via in LOCAL


def uid_owner(uid: int) -> OwnerId:
    """The owner that a local user is."""
    return OwnerId(f"uid:{uid}")


def local_caller(uid: int, *, operator: int, via: str, pid: int = 0) -> Caller:
    """A user of this machine; the one that runs the server is its administrator."""
    owner = uid_owner(uid)
    return Caller(owner=owner, identity=owner, role=Role.ADMIN if uid == operator else Role.USER, via=via, pid=pid)
