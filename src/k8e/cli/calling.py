"""From a parsed command to its exit code: reach the server, do the call, say what went wrong."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from k8e.cli import daemon
from k8e.cli.output import BAD_INPUT, INTERRUPTED, failed
from k8e.client.errors import InvalidRequest, SandboxError

if TYPE_CHECKING:
    from k8e.client import AsyncSandboxClient

__all__ = ["call"]

Handler = Callable[[argparse.Namespace, "AsyncSandboxClient"], Awaitable[int]]


def call(handler: Handler, args: argparse.Namespace, environ: Mapping[str, str], *, starts_server: bool) -> int:
    """Run one command against the server."""
    how = {"has_ok": getattr(args, "has_ok", False), "is_raw": getattr(args, "raw", False)}
    endpoint = getattr(args, "endpoint", None)
    try:
        target = daemon.reach(endpoint, environ) if starts_server else daemon.found(endpoint, environ)
        # Only now: the transport costs most of a short command's time.
        from k8e.client import AsyncSandboxClient

        async def main() -> int:
            async with AsyncSandboxClient(target=target) as client:
                return await handler(args, client)

        return asyncio.run(main())
    except SandboxError as error:
        return failed(error, **how)
    except BrokenPipeError:
        return BAD_INPUT
    except OSError as error:
        return failed(InvalidRequest(str(error)), **how)
    except KeyboardInterrupt:
        # asyncio has cancelled the call, and with it the command inside.
        return INTERRUPTED
