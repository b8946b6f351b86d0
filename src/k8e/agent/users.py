"""Who a command runs as, read from the image's own files: the agent's libc cannot load the image's name services."""

from __future__ import annotations

from .fields import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Optional

__all__ = ["User", "find"]


class User:
    """A resolved user."""

    __slots__ = ("gid", "groups", "home", "name", "uid")

    def __init__(self, uid: int, gid: int, name: str = "", home: str = "/") -> None:
        self.uid = uid
        self.gid = gid
        self.name = name or str(uid)
        self.home = home
        self.groups: List[int] = [gid]


def find(wanted: str) -> Optional[User]:
    """The user for a name or `uid[:gid]`; None for root, who needs no switch.

    Raises:
        Refusal: nobody has that name.
    """
    if wanted in ("", "root", "0"):
        return None
    name, _, group = wanted.partition(":")
    user = _known(name)
    if user is None:
        if not _is_id(name):
            raise Refusal("invalid", "user: %s is not in /etc/passwd" % name)
        user = User(int(name), int(name))
    if group:
        user.gid = _group(group)
    user.groups = sorted({user.gid, *_memberships(user.name)})
    return user


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 2**32 - 1


def _records(path: str, fields: int) -> Iterator[List[str]]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                record = line.rstrip("\n").split(":")
                if len(record) == fields:
                    yield record
    except OSError:
        return


def _known(name: str) -> Optional[User]:
    for record in _records("/etc/passwd", 7):
        if name in (record[0], record[2]) and _is_id(record[2]) and _is_id(record[3]):
            return User(int(record[2]), int(record[3]), record[0], record[5])
    return None


def _group(name: str) -> int:
    for record in _records("/etc/group", 4):
        if record[0] == name and _is_id(record[2]):
            return int(record[2])
    if not _is_id(name):
        raise Refusal("invalid", "user: the group %s is not in /etc/group" % name)
    return int(name)


def _memberships(name: str) -> Iterator[int]:
    for record in _records("/etc/group", 4):
        if name in record[3].split(",") and _is_id(record[2]):
            yield int(record[2])
