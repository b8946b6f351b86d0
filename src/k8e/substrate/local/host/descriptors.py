"""Waiting for a descriptor of the kernel's own: an eventfd, a pidfd, a pipe."""

from __future__ import annotations

import asyncio

__all__ = ["readable"]


async def readable(descriptor: int) -> None:
    """Until it can be read."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
