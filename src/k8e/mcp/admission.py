"""Which requests of one client run now, which wait, and which are refused: decisions and counts, no I/O.

An answer stays in memory until its client has read it, so what may be large at once is bounded: a client that asks for
many large files gets them a few at a time, and one that does not read holds no more than that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mcp_types import JSONRPCRequest, RequestId

from k8e.mcp.bounds import DEFAULT_CHARS

__all__ = ["BYTES", "CALLS", "LARGE", "STREAMS", "Admission"]

CALLS = 128
"""Requests that may wait for their answers: for fifty clients of one identity, whose next may come before the last is let go."""
BYTES = 128 * 1024 * 1024
"""And their lines together; a single one may always come."""
LARGE = 4
"""Answers that may be as large as a file: those beyond wait for their turn."""
STREAMS = 16
"""Commands that stream, or whose answer may be longer than usual: much of their output is held while they run."""


class Admission:
    def __init__(self) -> None:
        self._sizes: dict[RequestId, int] = {}
        self._large: set[RequestId] = set()
        self._streams: set[RequestId] = set()
        self._later: deque[JSONRPCRequest] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._sizes

    def knows(self, request_id: RequestId) -> bool:
        """Whether a request with this id is not answered yet."""
        return request_id in self._sizes

    def is_busy(self, request: JSONRPCRequest, size: int) -> bool:
        """Whether there is no room for one more."""
        is_full = len(self._sizes) >= CALLS or (bool(self._sizes) and sum(self._sizes.values()) + size > BYTES)
        return is_full or (_is_stream(request) and len(self._streams) >= STREAMS)

    def begin(self, request: JSONRPCRequest, size: int) -> bool:
        """Take a request in; whether it may run now, else `end` of another one gives it back."""
        self._sizes[request.id] = size
        if _is_stream(request):
            self._streams.add(request.id)
        if not _is_large(request):
            return True
        if len(self._large) < LARGE:
            self._large.add(request.id)
            return True
        self._later.append(request)
        return False

    def end(self, request_id: RequestId) -> Iterable[JSONRPCRequest]:
        """A request is answered, or nobody waits for its answer; what may run now in its place."""
        self._sizes.pop(request_id, None)
        self._streams.discard(request_id)
        self._large.discard(request_id)
        while self._later and len(self._large) < LARGE:
            following = self._later.popleft()
            self._large.add(following.id)
            yield following

    def forget(self, request_id: RequestId) -> bool:
        """Cancel a request that has not run yet; False for every other one."""
        waiting = [each for each in self._later if each.id == request_id]
        for each in waiting:
            self._later.remove(each)
            self._sizes.pop(each.id, None)
        return bool(waiting)


def _is_large(request: JSONRPCRequest) -> bool:
    return request.method == "resources/read" or _tool(request) == "sandbox_read_file"


def _is_stream(request: JSONRPCRequest) -> bool:
    return _tool(request) == "sandbox_exec_stream" or _asks_for_more(request)


def _asks_for_more(request: JSONRPCRequest) -> bool:
    """Whether more text is asked for than usual; what is no number is refused when it is looked at."""
    arguments = (request.params or {}).get("arguments") if _tool(request) else None
    wanted = arguments.get("max_chars") if isinstance(arguments, dict) else None
    return isinstance(wanted, int | float) and wanted > DEFAULT_CHARS


def _tool(request: JSONRPCRequest) -> str:
    name = (request.params or {}).get("name") if request.method == "tools/call" else ""
    return name if isinstance(name, str) else ""
