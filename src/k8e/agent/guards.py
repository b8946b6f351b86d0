"""Paths that are changed only with a word from outside: each place is looked at as it was really reached.

What programs in the sandbox write is theirs; this holds for requests that come through the engine. The place is walked
by directory descriptors (`places`), so no link, no `..` and no race between two looks leads past it; directories are
also known by their inodes, so that a second mount of one does not either.
"""

from __future__ import annotations

import os

from . import fields
from .fields import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Tuple

    Inode = Tuple[int, int]

__all__ = ["Guard", "guard_of", "inode_of", "inodes_above"]


class Guard:
    """The gated paths of one request, and those of its own that were approved."""

    __slots__ = ("_approved", "_gates", "_inodes")

    def __init__(self, gates: List[str], approved: List[str]) -> None:
        named = [os.path.normpath(os.fsencode(gate)) for gate in gates]
        # A gate may itself be a link, or lie behind one: both of its names are gated.
        self._gates = set(named) | {os.path.realpath(gate) for gate in named}
        self._inodes = {inode for gate in named for inode in _inodes(gate)}
        self._approved = [os.path.normpath(os.fsencode(path)) for path in approved]

    def holds(self, path: bytes, inodes: Iterable[Inode], *, above: bool) -> bool:
        """Whether a change there is one at or below a gate; with `above`, also one that takes a gate along.

        `inodes` are those of the place and of every directory on the way to it.
        """
        path = os.path.normpath(path)
        named = any(_is_at_or_below(path, gate) or (above and _is_at_or_below(gate, path)) for gate in self._gates)
        return named or not self._inodes.isdisjoint(inodes)

    def check(self, path: bytes, inodes: Iterable[Inode], *, above: bool = False) -> None:
        """Raises: Refusal with the place, unless it was approved."""
        if self.holds(path, inodes, above=above) and not self.approves(path):
            raise Refusal("gated", os.fsdecode(os.path.normpath(path)))

    def approves(self, path: bytes) -> bool:
        return os.path.normpath(path) in self._approved

    def check_parent(self, path: bytes, inodes: Iterable[Inode]) -> None:
        """A directory that is made on the way. Raises: Refusal, unless it is on the way to what was approved."""
        if not any(_is_at_or_below(approved, path) for approved in self._approved):
            self.check(path, inodes)


def guard_of(args: Dict[str, Any]) -> Optional[Guard]:
    """The request's guard; most have none."""
    if args.get("gates") is None:
        return None
    return Guard(fields.texts(args, "gates"), fields.texts(args, "approved"))


def inode_of(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


def inodes_above(path: bytes) -> List[Inode]:
    """Of the place and every directory on the way to it, as far as they exist."""
    found: List[Inode] = []
    while True:
        found += _inodes(path)
        if os.path.dirname(path) == path:
            return found
        path = os.path.dirname(path)


def _inodes(path: bytes) -> List[Inode]:
    try:
        return [inode_of(os.stat(path))]
    except OSError:
        return []


def _is_at_or_below(path: bytes, top: bytes) -> bool:
    return path == top or path.startswith(top.rstrip(b"/") + b"/")
