"""What the substrate says of the engine's sandboxes, told to each of them.

A substrate that fails is asked again, ever later; until it answers its sandboxes are out of touch, and none is taken for
dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeVar

from k8e.engine.boxes import Box
from k8e.engine.substrate import Alive, Change, Dead, OutOfMemory, OutOfTouch, Substrate
from k8e.errors import K8eError
from k8e.model import Death, SandboxId

__all__ = ["SandboxWatch", "hear_for_ever"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_RETRY_FIRST_S: Final = 0.1
_RETRY_MOST_S: Final = 30.0
_EARLY_DEATHS: Final = 1024
"""Deaths of sandboxes that were claimed a moment ago and are not followed yet."""


async def hear_for_ever(
    listen: Callable[[], AsyncIterator[_T]], heard: Callable[[_T], None], failed: Callable[[str], None]
) -> None:
    """Hand on all that comes. Whenever the source ends, or it or `heard` fails, listen again after ever longer pauses."""
    pause_s = _RETRY_FIRST_S
    while True:
        reason = "it ended"
        try:
            async for item in listen():
                heard(item)
                pause_s = _RETRY_FIRST_S
        except Exception as error:  # noqa: BLE001 - whatever it was, what comes afterwards must be heard
            reason = str(error) or repr(error)
            if not isinstance(error, K8eError | OSError):
                _log.exception("listening failed unexpectedly")
        failed(reason)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _RETRY_MOST_S)


class SandboxWatch:
    """Knows every sandbox that the engine holds; `out_of_memory` is told of one that met its limit and goes on."""

    def __init__(self, substrate: Substrate) -> None:
        self._substrate = substrate
        self._boxes: dict[SandboxId, Box] = {}
        self._early: dict[SandboxId, Death] = {}
        self.out_of_memory: Callable[[Box, str], None] = lambda _box, _detail: None

    def follow(self, box: Box) -> None:
        """From now on it hears of its changes, and of its death if that has come already."""
        self._boxes[box.id] = box
        if (death := self._early.pop(box.id, None)) is not None:
            box.end(death)

    def leave(self, box: Box) -> None:
        self._boxes.pop(box.id, None)

    async def listen(self) -> None:
        """For ever."""
        await hear_for_ever(self._substrate.changes, self._heard, self._out_of_touch)

    def _out_of_touch(self, reason: str) -> None:
        _log.warning("out of touch with the substrate", extra={"reason": reason})
        for box in self._boxes.values():
            box.out_of_touch = reason

    def _heard(self, change: Change) -> None:
        box = self._boxes.get(change.sandbox)
        if box is None:
            if isinstance(change, Dead):
                self._early[change.sandbox] = change.death
                if len(self._early) > _EARLY_DEATHS:
                    del self._early[next(iter(self._early))]
            return
        match change:
            case Alive():
                box.out_of_touch = ""
            case Dead(_, death):
                box.end(death)
            case OutOfMemory(_, detail):
                self.out_of_memory(box, detail)
            case OutOfTouch(_, detail):
                box.out_of_touch = detail
