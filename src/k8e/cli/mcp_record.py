"""What a relay has to remember of an MCP conversation, so that it can go on with another server in the same place.

Pure: lines in, lines out. It keeps the handshake, knows which calls have no answer yet, and lets no answer of the
client reach a server that never asked: a question's number means something only to who asked it.
"""

from __future__ import annotations

import json
import re

__all__ = ["Record", "error_line", "id_of_long"]

LOST = (
    "The connection to the k8e server was lost while this ran, because the server stopped or was restarted: how far it "
    "got is not known. The session and its files live on, and the server is reached again by the next call. Look at "
    "what was left, for example with sandbox_list_files, before you repeat it."
)
INTERNAL = -32603
REPEATED = frozenset(
    {
        "initialize", "ping", "server/discover", "tools/list", "resources/list", "resources/templates/list",
        "resources/read", "prompts/list", "logging/setLevel",
    }
)  # fmt: skip
"""What may be asked twice: it changes nothing, so nobody needs to know that the server was another one for a moment."""

Id = int | float | str | None

_ID = rb'"id"\s*:\s*(-?\d+|"(?:[^"\\]|\\.){0,200}")\s*'
_PLAIN = rb'"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*'
# At the first or last members of the outermost object, and so nowhere inside the arguments.
_AT_HEAD = re.compile(rb"\s*\{\s*(?:" + _PLAIN + rb",\s*){0,2}" + _ID + rb",")
_AT_TAIL = re.compile(rb",\s*" + _ID + rb"(?:,\s*" + _PLAIN + rb"){0,2}\}\s*$")


class Record:
    """One client's conversation, whichever server it is with."""

    def __init__(self) -> None:
        self._initialize: tuple[Id, bytes] | None = None
        self._initialized: bytes | None = None
        self._open: dict[Id, tuple[str, bytes]] = {}
        """The client's requests without an answer: method, and the line where it may be sent again."""
        self._asked: dict[Id, Id] = {}
        """The server's requests without an answer: the number that the client knows, and the server's own."""
        self._is_swallowing = False
        """Whether an answer to a repeated handshake is on its way, which the client has had already."""
        self._servers = 0

    def said(self, line: bytes) -> bytes | None:
        """Take note of what the client says; what the server is to be told, if anything."""
        message = parsed(line)
        if isinstance(message, list):
            for each in message:
                self._note(each, b"")
            return line
        if not isinstance(message, dict):
            return line
        if "method" not in message and "id" in message:
            return self._answered(message, line)
        self._note(message, line)
        return line

    def heard(self, line: bytes) -> bytes | None:
        """Take note of what the server says; what the client is to be told, if anything."""
        message = parsed(line)
        for each in message if isinstance(message, list) else ():
            self._close(each)
        if not isinstance(message, dict):
            return line
        if "method" in message:
            return self._question(message, line) if "id" in message else line
        if self._is_swallowing and self._initialize and message.get("id") == self._initialize[0]:
            self._is_swallowing = False
            return None
        self._close(message)
        return line

    def lost(self, why: str = LOST, *, for_good: bool = False) -> list[bytes]:
        """The server is gone: what the client is told instead of answers that will never come."""
        self._servers += 1
        self._is_swallowing = False
        told = [withdrawn(number) for number in self._asked]
        self._asked.clear()
        for number, (method, line) in list(self._open.items()):
            if for_good or not line:
                told.append(lost_line(number, method, why))
                del self._open[number]
        return told

    def again(self) -> list[bytes]:
        """What another server is told first, so that it is where this one was."""
        lines: list[bytes] = []
        if self._initialize and self._initialize[0] not in self._open:
            self._is_swallowing = True
            lines = [self._initialize[1], *([self._initialized] if self._initialized else [])]
        return lines + [line for _, line in self._open.values() if line]

    @property
    def is_waiting(self) -> bool:
        """Whether a client waits for what another server could still answer."""
        return bool(self._open)

    def cancellations(self) -> list[bytes]:
        """For every call that has no answer: that nobody waits for it any more."""
        return [cancelled(number) for number in self._open]

    def _note(self, message: object, line: bytes) -> None:
        if not isinstance(message, dict):
            return
        method, number = message.get("method"), message.get("id")
        if method == "notifications/initialized":
            self._initialized = line or None
        elif method == "notifications/cancelled":
            params = message.get("params")
            self._open.pop(params.get("requestId") if isinstance(params, dict) else None, None)
        elif isinstance(method, str) and isinstance(number, int | float | str):
            if method == "initialize" and line:
                self._initialize, self._initialized = (number, line), None
            self._open[number] = (method, line if method in REPEATED else b"")

    def _close(self, message: object) -> None:
        if isinstance(message, dict) and "method" not in message:
            number = message.get("id")
            if isinstance(number, int | float | str):
                self._open.pop(number, None)

    def _question(self, message: dict[str, object], line: bytes) -> bytes:
        number = message["id"]
        if not isinstance(number, int | float | str):
            return line
        # A later server counts from the beginning, and a client may still be showing an earlier one's question.
        shown = f"{self._servers}:{number}" if self._servers else number
        self._asked[shown] = number
        return json.dumps({**message, "id": shown}).encode() if self._servers else line

    def _answered(self, message: dict[str, object], line: bytes) -> bytes | None:
        number = message["id"]
        if not isinstance(number, int | float | str) or number not in self._asked:
            return None
        own = self._asked.pop(number)
        return line if own == number else json.dumps({**message, "id": own}).encode()


def parsed(line: bytes) -> object:
    """What a line says; None where the server has to tell what is wrong with it."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def error_line(number: Id, code: int, text: str) -> bytes:
    return shown({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}})


def lost_line(number: Id, method: str, why: str) -> bytes:
    """A model reads the result of a tool, and hardly ever an error of the protocol."""
    if method != "tools/call":
        return error_line(number, INTERNAL, why)
    result = {"content": [{"type": "text", "text": why}], "isError": True, "resultType": "complete"}
    return shown({"jsonrpc": "2.0", "id": number, "result": result})


def withdrawn(number: Id) -> bytes:
    params = {"requestId": number, "reason": "the server that asked has stopped"}
    return shown({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


def cancelled(number: Id) -> bytes:
    params = {"requestId": number, "reason": "the client ends"}
    return shown({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


def shown(message: dict[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def id_of_long(head: bytes, tail: bytes) -> Id:
    """The id of a request that is too long to be read whole, from its first and last bytes; None where it hides."""
    found = _AT_HEAD.match(head) or _AT_TAIL.search(tail)
    try:
        number = json.loads(found[1]) if found else None
    except ValueError:
        return None
    return number if isinstance(number, int | float | str) else None
