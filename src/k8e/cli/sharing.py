"""Which session a command works in, and what happens when the shared one is gone."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TypeVar

from k8e.cli.output import say
from k8e.cli.state import SharedSession
from k8e.client.errors import NotFound, SandboxLost
from k8e.client.light.calls import CREATE_S, Calls

__all__ = ["forget", "in_session", "shared", "tenant"]

T = TypeVar("T")


def tenant(named: str) -> str:
    """The one that was named, else the environment's."""
    return named or os.environ.get("K8E_SANDBOX_TENANT", "")


def shared(args: argparse.Namespace) -> SharedSession:
    """The shared session's state of this user, at the server that was reached."""
    return SharedSession.of(tenant(args.tenant), args.account, os.environ)


def forget(session_id: str) -> None:
    """Drop every state that names a session which was destroyed."""
    for state in SharedSession.every(os.environ):
        state.forget(session_id)


def in_session(args: argparse.Namespace, calls: Calls, work: Callable[[str], T]) -> T:
    """Do the work in the named session, or in the shared one, which is made again once if it is gone."""
    if named := args.session_id or os.environ.get("K8E_SANDBOX_SESSION_ID", ""):
        return work(named)
    state = shared(args)

    def create() -> str:
        return calls.unary("CreateSession", {"tenant_id": state.tenant}, timeout_s=CREATE_S).text("session_id")

    session_id = state.obtain(create)
    try:
        return work(session_id)
    except (NotFound, SandboxLost) as error:
        # Answered only before anything ran, so doing the work again is safe.
        say(f"{error}; continuing in a new session")
        return work(state.obtain(create, gone=session_id))
