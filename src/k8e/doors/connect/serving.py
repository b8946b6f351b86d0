"""The door itself: the application behind a unix socket, for as long as a block lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

from uvicorn.config import Config

from k8e.doors.connect.acceptor import Acceptor
from k8e.doors.connect.app import App
from k8e.doors.connect.bounds import BOUNDS, Bounds
from k8e.doors.connect.connections import Connection, Listening
from k8e.doors.connect.hangups import Hangups
from k8e.doors.connect.sockets import placed
from k8e.doors.service.edge import Edge

__all__ = ["serve"]


@asynccontextmanager
async def serve(
    edge: Edge, *, path: Path, bounds: Bounds = BOUNDS, undrained: Callable[[], None] = lambda: None
) -> AsyncIterator[str]:
    """Serve on `path` until the block ends; yields its address.

    At the end running calls get a while to finish; then `undrained` may leave without cancelling them, because
    cancelling a call stops its command. Raises: Conflict when another server is there; OSError.
    """
    config = Config(
        App(edge, bounds),
        lifespan="off",
        ws="none",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=bounds.idle_s,
    )
    config.load()
    loop = asyncio.get_running_loop()
    with placed(path) as sock, closing(Hangups(loop)) as hangups:
        state = Listening(hangups, bounds)
        async with asyncio.TaskGroup() as group:
            acceptor = Acceptor(sock, state, lambda: Connection(config, state), group)
            try:
                yield f"unix://{path}"
            finally:
                acceptor.close()
                sock.close()
                await drain(state, undrained)


async def drain(state: Listening, undrained: Callable[[], None]) -> None:
    """Let calls end; what is still there then is cut off, and a connection that is gone ends its call."""
    state.close()
    if state.tasks:
        await asyncio.wait(state.tasks, timeout=state.bounds.drain_s)
    if state.tasks:
        undrained()
    else:
        # A call is over when its answer is written, not when it is read.
        with suppress(TimeoutError):
            async with asyncio.timeout(state.bounds.last_words_s):
                await state.empty()
    state.abort()
    if state.tasks:
        await asyncio.wait(state.tasks)
    await state.empty()
