"""Divides the free space of the host's disk among the sandboxes' disks, so that theirs are full before the host's is.

Disks are sparse: together they promise more than there is. A write that finds no block on the host is lost after its
program was told that it succeeded. So each disk may grow only by its share of what is free beyond a reserve, until the next
round; data that is written inside but not yet in the image counts as used. At its bound `write` fails with ENOSPC, and
works again when there is space. Nothing is remembered: every round starts from what is mounted. ADR 16 has the details.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from k8e.errors import DiskFull
from k8e.model import GIB, MIB
from k8e.substrate.local.host import ext4
from k8e.substrate.local.layout import Layout

__all__ = ["HostDiskSpace", "next_round_s", "reserve_of", "share_of"]

_log = logging.getLogger(__name__)

_RESERVE_MOST = GIB
_RESERVE_SHARE = 20
_FASTEST = 4 * GIB
"""Bytes a second that one sandbox may write without meeting the end of its share before the next round."""
_ROUND_S = (0.02, 1.0)
_UNKNOWN = 2**60
"""Some file systems do not say how large they are."""
_STALE_BYTES = 64 * MIB
_STALE_BYTES_IN_NEED = 4 * MIB
_PART = 128 * MIB
"""Of a disk, given back in one step: a group of blocks, which takes some 25 ms where all of it is to be given back."""
_TRIM_S = 0.02
_TRIM_AGAIN_S = 0.1


def reserve_of(total_bytes: int) -> int:
    """What is kept free where the operator says nothing: a twentieth of the disk, at most 1 GiB.

    It has to take what several write at once between two rounds, the host's own book-keeping, and the server's records.
    """
    return min(total_bytes // _RESERVE_SHARE, _RESERVE_MOST)


def share_of(free: Iterable[int], headroom: int, reserve: int) -> int:
    """By how much each disk may grow: alone, by all that is left, and all together by that and half of the reserve.

    No share is kept for what a disk has not free inside. In whole MiB, or every few bytes would be a new bound for all.
    """
    left, wanting = headroom + reserve // 2, sorted(free)
    share = headroom
    for before, least in enumerate(wanting):
        each = left // (len(wanting) - before)
        if each <= least:
            share = min(each, headroom)
            break
        left -= least
    return share // MIB * MIB


def next_round_s(share: int, took_s: float) -> float:
    """The pause until the next round: the sooner, the less each may take, and at most a fifth of one core's time."""
    least, most = _ROUND_S
    return max(min(max(share / _FASTEST, least), most), 4 * took_s)


class HostDiskSpace:
    """Blocking; one thread at a time."""

    def __init__(
        self, layout: Layout, reserve_bytes: int | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._layout = layout
        self._clock = clock
        self._reserve = reserve_bytes
        self._after_trim: dict[Path, int] = {}
        """What could not be given back of each disk: its own book-keeping, and pieces too small."""
        self._trimming: tuple[Path, int] | None = None
        """The image that is being gone through, and where that goes on."""
        self._promised = 0
        """What the host's disk still had to take at the last round."""
        self._is_short = False
        self._has_failed = False

    @property
    def reserve(self) -> int:
        """Bytes that are left alone."""
        return self._left()[1]

    def check(self) -> None:
        """Raises: DiskFull, where a new sandbox would begin on the reserve."""
        if self._left()[0] <= self._promised:
            raise DiskFull(str(self._layout.data_dir), "what is left there is the reserve")

    def set_bounds(self) -> float:
        """One round: tell every disk how far it may grow. Returns the pause until the next."""
        began = self._clock()
        with contextlib.ExitStack() as stack:
            disks = dict(self._disks(stack))
            self._promised = sum(usage.promised for usage in disks.values())
            left, reserve = self._left()
            headroom = left - self._promised
            share = share_of((usage.free for usage in disks.values()), headroom, reserve)
            for disk, usage in disks.items():
                self._let_grow(disk, share, usage)
            self._log_shortage(headroom)
            self._choose_trim(disks, _STALE_BYTES_IN_NEED if headroom <= 0 else _STALE_BYTES)
        pause_s = next_round_s(share, self._clock() - began)
        # No disk is kept mounted by us now: trimming takes a while, and a sandbox that is removed meanwhile should go at once.
        return self._trim_for_a_moment(pause_s) if self._trimming is not None else pause_s

    def _left(self) -> tuple[int, int]:
        """What is left beyond the reserve, and the reserve."""
        host = os.statvfs(self._layout.data_dir)
        if not host.f_blocks:
            return _UNKNOWN, 0
        reserve = reserve_of(host.f_blocks * host.f_frsize) if self._reserve is None else self._reserve
        return host.f_bavail * host.f_frsize - reserve, reserve

    def _disks(self, stack: contextlib.ExitStack) -> Iterator[tuple[ext4.MountedDisk, ext4.DiskUsage]]:
        """Everything that is mounted, until the stack is left."""
        for parent in (self._layout.sandboxes, self._layout.workspaces):
            for entry in os.scandir(parent):
                root = parent / entry.name
                disk = stack.enter_context(ext4.mounted_disk(root / "disk", root / "disk.ext4"))
                if disk is None:
                    continue
                try:
                    usage = disk.usage()
                except OSError:
                    continue  # it is being removed
                yield disk, usage

    def _let_grow(self, disk: ext4.MountedDisk, most: int, usage: ext4.DiskUsage) -> None:
        try:
            disk.let_grow(most, usage.free)
        except OSError as error:
            self._complain(disk, error)

    def _complain(self, disk: ext4.MountedDisk, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            _log.error("cannot bound a sandbox's disk", extra={"disk": str(disk.image), "error": str(error)})

    def _log_shortage(self, headroom: int) -> None:
        if self._is_short == (headroom <= 0):
            return
        self._is_short = headroom <= 0
        where = {"directory": str(self._layout.data_dir)}
        if self._is_short:
            _log.error("THE HOST'S DISK IS FULL but for the reserve; sandboxes cannot grow: free space", extra=where)
        else:
            _log.warning("the host's disk has room again; sandboxes can grow", extra=where)

    def _choose_trim(self, disks: Mapping[ext4.MountedDisk, ext4.DiskUsage], least: int) -> None:
        """One at a time: the image that has most to give back, if that is enough to be worth it."""
        self._after_trim = {disk.image: self._after_trim.get(disk.image, 0) for disk in disks}
        if self._trimming is not None:
            return
        gains = {disk.image: usage.stale - self._after_trim[disk.image] for disk, usage in disks.items()}
        most = max(gains, key=lambda image: gains[image], default=None)
        if most is not None and gains[most] >= least:
            self._trimming = most, 0

    def _trim_for_a_moment(self, pause_s: float) -> float:
        """Go on with it for a moment; returns what is left of the pause, so that the next round is not late.

        At intervals and not at every deletion (`-o discard`): that made deleting 20,000 small files eleven times slower.
        """
        began = now = self._clock()
        while self._trimming is not None and now - began < _TRIM_S:
            self._trimming = self._trim_part(*self._trimming)
            now = self._clock()
        if self._trimming is not None:
            pause_s = min(pause_s, _TRIM_AGAIN_S)
        return max(pause_s - (now - began), 0.0)

    def _trim_part(self, image: Path, start: int) -> tuple[Path, int] | None:
        """One part of it; where it goes on."""
        with ext4.mounted_disk(image.with_name("disk"), image) as disk:
            if disk is None:
                return None
            try:
                if disk.trim(start, _PART):
                    return image, start + _PART
                self._after_trim[image] = disk.usage().stale
            except OSError as error:
                self._complain(disk, error)
        return None
