"""What a call is about: the objects that its request and its answer name, and never what they hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

__all__ = ["LOOKS", "OBJECTS", "Names", "cut", "made", "may_stop", "objects"]

Names = dict[str, str | int | float | bool]

LOOKS = frozenset({
    "GetSession", "ListSessions", "PollRun", "GetProcesses", "ListFiles", "GetTranscript", "GetEvents", "SnapshotList",
    "TerminalStream", "TerminalForeground", "ListExposed", "AttachExec", "AttachRun", "ListRuns", "ListExecs", "StatFile",
    "ListDirectory", "WatchFiles", "ListEgress", "ListSecrets", "ListWorkspaces", "ListApprovals", "ListApiKeys",
    "WhoAmI", "ServerStatus",
})  # fmt: skip
"""Calls that change nothing, unless they say that they may stop something."""
OBJECTS = (
    "session_id", "parent_session_id", "run_id", "exec_id", "terminal_id", "approval_id", "tenant_id", "name", "path",
    "source", "target", "image", "labels", "hosts", "add", "set", "remove", "packages", "action", "approved", "reason", "presence", "role", "owner",
    "stop", "port",
)  # fmt: skip
CALLED = {"owner": "for_owner"}
"""Where a record has a field of that name for something else: there, `owner` is whose call it was."""
MADE = ("session_id", "run_id", "terminal_id", "approval_id", "name", "status")
VALUE_CHARS = 256


def may_stop(request: object) -> bool:
    """Whether a call that looks on ends what it looks at when its caller leaves."""
    return bool(getattr(request, "stop", False))


def objects(request: Any) -> Names:
    """What a request names; of a stream, what its first message does."""
    message = getattr(request, "first", None) if not hasattr(request, "DESCRIPTOR") else request
    if message is None:
        return {}
    return {key: value for each in (*opening(message), message) for key, value in named(each, OBJECTS).items()}


def made(answer: object = None) -> Names:
    """What an answer adds: the names of things that the call made."""
    return named(answer, MADE) if hasattr(answer, "DESCRIPTOR") else {}


def opening(message: Any) -> Iterator[Any]:
    """What begins a stream stands inside its first message, as one of several that can."""
    for choice in message.DESCRIPTOR.oneofs:
        chosen = message.WhichOneof(choice.name)
        if chosen and message.DESCRIPTOR.fields_by_name[chosen].message_type is not None:
            yield getattr(message, chosen)


def named(message: Any, names: tuple[str, ...]) -> Names:
    known = message.DESCRIPTOR.fields_by_name
    found: Names = {}
    for name in names:
        value = getattr(message, name) if name in known else ""
        if f"{name}_bytes" in known:
            value = getattr(message, f"{name}_bytes").decode("utf-8", "backslashreplace") or value
        if name in known and known[name].is_repeated:
            # Of labels the keys: their values are contents.
            value = ",".join(value)
        if value != "":
            found[CALLED.get(name, name)] = cut(value) if isinstance(value, str) else value
    return found


def cut(text: str) -> str:
    """Whatever a caller sends, a record stays small, also where JSON needs twelve bytes for one character."""
    text = text[:VALUE_CHARS]
    return text if len(json.dumps(text)) <= 2 * VALUE_CHARS else text[: VALUE_CHARS // 8]
