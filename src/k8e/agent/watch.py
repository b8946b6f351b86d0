"""File watching: inotify turned into change events; what the kernel or the engine's window drops is said as overflow."""

from __future__ import annotations

import os
import struct

from k8e.wire.outbox import WINDOW

from . import fields, libc
from .link import Subscriber
from .loop import READ
from .places import place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Tuple

    from .link import Link
    from .loop import Loop

__all__ = ["Watch"]

_EVENT = struct.Struct("iIII")
_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED, _ISDIR = 0x400, 0x800, 0x4000, 0x8000, 0x40000000
_MASK = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_KINDS = (
    (_CREATE | _MOVED_TO, "create"),
    (_MODIFY, "write"),
    (_DELETE | _DELETE_SELF, "remove"),
    (_MOVED_FROM | _MOVE_SELF, "rename"),
    (_ATTRIB, "chmod"),
)


class Watch(Subscriber):
    """One watched file or tree."""

    def __init__(self, loop: Loop, link: Link, number: int, args: Dict[str, Any]) -> None:
        self._loop = loop
        self._link = link
        self._number = number
        self._recursive = fields.flag(args, "recursive")
        self._paths: Dict[int, bytes] = {}
        self._last: Tuple[str, bytes] = ("", b"")
        self._is_overflowing = False
        with place_of(args) as place:
            path = os.path.normpath(place.path)
            place.stat(follow=True)
        self._fd = libc.inotify_open()
        try:
            self._add(path)
        except BaseException:  # a tree may be deeper than Python's stack
            os.close(self._fd)
            raise

    def begin(self) -> None:
        """Once the link knows it: what the link says now may end it, and this with it."""
        self._loop.watch(self._fd, READ, self._readable)
        self._link.mux.event(self._number, "watching", {})
        self._link.flush()

    def _add(self, path: bytes) -> None:
        self._paths[libc.inotify_add(self._fd, path, _MASK)] = path
        if self._recursive and os.path.isdir(path) and not os.path.islink(path):
            with os.scandir(path) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            for child in below:
                self._add_quietly(child)

    def _add_quietly(self, path: bytes) -> None:
        try:
            self._add(path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # out of watches: say so rather than miss changes silently
                self._tell("overflow", path)

    def _readable(self, events: int) -> None:
        try:
            data = os.read(self._fd, 64 * 1024)
        except OSError:
            return
        for watch, mask, name in _parse(data):
            self._change(watch, mask, name)
        self._link.flush()

    def _change(self, watch: int, mask: int, name: bytes) -> None:
        if mask & _OVERFLOW:
            self._tell("overflow", b"")
            return
        parent = self._paths.get(watch)
        if mask & _IGNORED:
            self._paths.pop(watch, None)
        if parent is None:
            return
        path = os.path.join(parent, name) if name else parent
        for bits, kind in _KINDS:
            if mask & bits:
                self._tell(kind, path)
        if self._recursive and mask & _ISDIR and mask & (_CREATE | _MOVED_TO):
            self._add_quietly(path)
            self._tell_content(path)

    def _tell_content(self, path: bytes) -> None:
        """What was put into a new tree before its watches existed."""
        for directory, below, files in os.walk(path):
            for name in below + files:
                self._tell("create", os.path.join(directory, name))

    def _tell(self, kind: str, path: bytes) -> None:
        if (kind, path) == self._last and kind == "write":
            return
        self._last = (kind, path)
        if self._link.mux.backlog(self._number) > WINDOW // 2:
            if not self._is_overflowing:
                self._is_overflowing = True
                self._event("overflow", b"")
            return
        self._is_overflowing = False
        self._event(kind, path)

    def _event(self, kind: str, path: bytes) -> None:
        self._link.mux.event(self._number, "change", {"kind": kind, "path": os.fsdecode(path)})

    def acked(self) -> None:
        self._last = ("", b"")

    def lost(self) -> None:
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1


def _parse(data: bytes) -> Iterator[Tuple[int, int, bytes]]:
    offset = 0
    while offset + _EVENT.size <= len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, offset)
        offset += _EVENT.size
        yield watch, mask, data[offset : offset + length].rstrip(b"\0")
        offset += length
