"""`sandbox-mcp`: an MCP server for one agent on standard input and output, or for several over HTTP.

The server itself speaks MCP; over standard input and output this is only the wire to it, and so it starts in
milliseconds. Over HTTP it is a process of its own (`k8e.web`).
"""

from __future__ import annotations

import argparse
import gc
import os
import select
import signal
from collections.abc import Mapping

from k8e.cli.mcp_relay import Relay, Ways
from k8e.cli.output import INTERRUPTED, failed
from k8e.cli.reaching import reach
from k8e.client.errors import InvalidRequest, SandboxError, Unsupported
from k8e.client.light.calls import Calls
from k8e.client.light.places import data_dirs
from k8e.client.light.profiles import connection

__all__ = ["environment", "serve"]

TERMINATED = 128 + signal.SIGTERM
COLLECT_AFTER = 50_000


def serve(args: argparse.Namespace) -> int:
    """Serve until the agent goes away. Standard output is the agent's: everything else is said on standard error."""
    environ = environment(args, os.environ)
    try:
        if args.http:
            from k8e.cli.mcp_http import serve_http

            return serve_http(args, environ)
        gc.set_threshold(COLLECT_AFTER)
        return relayed(args, environ)
    except SandboxError as error:
        return failed(error, is_raw=True)
    except BrokenPipeError:
        return 0
    except OSError as error:
        return failed(InvalidRequest(str(error)), is_raw=True)
    except KeyboardInterrupt:
        return INTERRUPTED


def environment(args: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment, with what flags say instead."""
    given = {"K8E_SANDBOX_CERT": args.tls_cert, "K8E_SANDBOX_KEY": args.tls_key, "K8E_SANDBOX_TENANT": args.tenant_id}
    return {**environ, **{name: value for name, value in given.items() if value}}


def relayed(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if not hasattr(select, "poll"):
        raise Unsupported("standard streams cannot be waited for here; run it in WSL, or give the agent a URL")
    start = {"client_id": os.urandom(16).hex(), "tenant_id": environ.get("K8E_SANDBOX_TENANT", "")}
    relay = Relay(ways(args, environ), start)
    for number, code in ((signal.SIGTERM, TERMINATED), (signal.SIGHUP, TERMINATED), (signal.SIGINT, INTERRUPTED)):
        signal.signal(number, lambda *_, code=code: relay.stop(code))
    return relay.run()


def ways(args: argparse.Namespace, environ: Mapping[str, str]) -> Ways:
    place = connection(args.endpoint or "", args.profile or "", environ)

    def to_server(starts_server: bool) -> Calls:
        return reach(args, environ, starts_server=starts_server)

    def is_back() -> bool:
        if place.endpoint:
            return True
        from k8e.cli.running import is_running, ready_pid

        return any(is_running(each) and ready_pid(each) is not None for each in data_dirs(environ))

    return Ways(to_server, is_back)
