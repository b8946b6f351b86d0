"""What a tool answers: JSON as text for every client, and the same as structured content for those that know it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

import mcp_types as types

from k8e.client import EgressDenial, Exit
from k8e.client.errors import (
    DeadlineExceeded,
    Denied,
    Exhausted,
    NotFound,
    SandboxError,
    SandboxLost,
    Unauthenticated,
    Unreachable,
)
from k8e.mcp.bounds import shorter

__all__ = [
    "Fields",
    "denied",
    "encoded",
    "failed",
    "more_memory",
    "raw_text",
    "told",
    "unusual",
    "visible",
    "with_notes",
]

Fields = dict[str, Any]
"""The fields of one answer, in the order in which they are read."""
AT_GATE = "A person has to allow this: tell the user what was asked, and do not try another way."
NOT_FOUND = {
    "session ": "The session has ended, or never was: make one with sandbox_create_session, or use sandbox_run, which has "
    "its own. What was only in it is gone.",
    "approval ": "That question never was, or is long over: ask again without approval_id.",
    "": "sandbox_list_files shows the files that there are.",
}
"""By how the text begins; the last one is for everything else."""
ERROR_CHARS = 8000
DETAIL_CHARS = 2000
MIB = 1024 * 1024


def told(fields: Fields, *more: types.ContentBlock, text: str | None = None) -> types.CallToolResult:
    """An answer. `text` stands in place of the JSON where a tool's answer was always plain text."""
    shown = json.dumps(fields, ensure_ascii=False) if text is None else text
    return types.CallToolResult(content=[raw_text(shown), *more], structured_content=fields)


def raw_text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


def failed(error: SandboxError) -> types.CallToolResult:
    """An error as the model reads it: what is wrong, and what to do next."""
    text = shorter(str(error), ERROR_CHARS)
    remedy = remedy_for(error)
    told_already = remedy in text or error.remedy in text
    # The SDK's own note is the remedy for people.
    notes = [note for note in getattr(error, "__notes__", ()) if note != error.remedy]
    said = [text, *([] if told_already else [remedy]), *notes]
    return types.CallToolResult(content=[raw_text("\n".join(said))], is_error=True)


def remedy_for(error: SandboxError) -> str:
    match error:
        case NotFound():
            return next(remedy for beginning, remedy in NOT_FOUND.items() if str(error).startswith(beginning))
        case SandboxLost():
            return "The sandbox died: make another session. What was only in this one is gone."
        case Exhausted(retry_after_s=float() as seconds):
            return f"Try again in {seconds:.1f} s."
        case Exhausted():
            return "Destroy a session that you no longer need (sandbox_destroy_session), then try again."
        case DeadlineExceeded():
            return "Give a longer timeout, or use sandbox_exec_stream for what takes long."
        case Unauthenticated():
            return "The sandbox server does not know this client: the user has to give it a key (K8E_SANDBOX_APIKEY)."
        case Denied():
            return AT_GATE if error.approval_id else "You may not do this; tell the user instead of trying another way."
        case Unreachable():
            return "The sandbox server does not answer; the user can start one with: k8e server"
    return f"{error.remedy[0].upper()}{error.remedy[1:]}."


def with_notes(fields: Fields, *notes: str) -> Fields:
    """The fields with what else there is to say, beside the note that they have."""
    said = " ".join(note for note in (fields.get("note", ""), *notes) if note)
    return {**fields, "note": said} if said else fields


def unusual(end: Exit) -> Fields:
    """What is worth a word beside output and exit code; nothing where all is as usual."""
    fields = Fields()
    if end.status == "timed_out":
        fields |= {"status": end.status, "note": "The time was over; give a longer timeout."}
    elif end.reason:
        fields |= {"status": end.status, "reason": end.reason}
    if end.detail:
        fields["detail"] = shorter(end.detail, DETAIL_CHARS)
    return fields | denied(end.egress_denied)


def more_memory(limit: int, *, is_sure: bool) -> str:
    """What to do about a command that was killed in a session which has so many bytes of memory; 0 is unknown."""
    why = "Out of memory" if is_sure else "Killed, most likely because it was out of memory"
    has = f": the session has {limit // MIB} MiB" if limit else ""
    return (
        f"{why}{has}. Use less, or make a session with more: sandbox_create_session with memory_mib "
        f"{max(4 * limit // MIB, 2048)}, then give its session_id to the other tools. It begins without the files of "
        "this one."
    )


def denied(denials: Iterable[EgressDenial]) -> Fields:
    """Hosts that were refused, with the way to get them."""
    hosts = [{"host": visible(each.host), "port": each.port, "reason": visible(each.reason)} for each in denials]
    if not hosts:
        return {}
    names = sorted({str(each["host"]) for each in hosts})
    fix = (
        f"The sandbox may not reach {', '.join(names)}. If the task needs it, make a session that may: "
        f"sandbox_create_session with allowed_hosts {json.dumps(names)} and every other host that you need, because the "
        "list replaces the default; then give its session_id to sandbox_run. Do not try to get around it."
    )
    return {"egress_denied": hosts, "egress_fix": fix}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def visible(text: str) -> str:
    """Text that every JSON can carry; names that are not UTF-8 are shown as well as it goes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
