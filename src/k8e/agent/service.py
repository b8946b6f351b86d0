"""One table of the agent's operations, each answered with a result or a refusal, never with a crash."""

from __future__ import annotations

import sys

from .fields import Refusal, refusal_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    from .link import Link

    Call = Callable[[Dict[str, Any]], Optional[Dict[str, Any]]]
    Opening = Callable[["Link", int, Dict[str, Any]], None]

__all__ = ["Service"]


_READS = frozenset(("execs", "follow", "file.list", "file.read", "file.stat", "file.watch", "processes", "program"))
"""What a follower may ask for: it changes nothing that the owner has, and takes nothing from it."""
_FOLLOWER_STREAMS = 16
"""That one follower may have open at a time."""


class Service:
    """Knows every operation by name."""

    def __init__(self) -> None:
        self._calls: Dict[str, Call] = {}
        self._streams: Dict[str, Opening] = {}

    def add_call(self, op: str, call: Call) -> None:
        """A unary operation."""
        self._calls[op] = call

    def add_stream(self, op: str, opening: Opening) -> None:
        """An operation that answers over time."""
        self._streams[op] = opening

    def open(self, link: Link, number: int, op: str, args: Dict[str, Any]) -> None:
        """Serve one request."""
        try:
            self._serve(link, number, op, args)
        except Refusal as refusal:
            link.fail(number, refusal.code, str(refusal))
        except OSError as error:
            answer = refusal_of(error)
            link.fail(number, answer.code, str(answer))
        except Exception as error:  # noqa: BLE001  # the edge: whatever a request provokes, PID 1 answers and goes on
            sys.excepthook(*sys.exc_info())
            link.fail(number, "internal", "%s: %s" % (type(error).__name__, error))

    def _serve(self, link: Link, number: int, op: str, args: Dict[str, Any]) -> None:
        if link.is_follower and op not in _READS:
            raise Refusal("denied", "a follower may only read")
        if link.is_follower and len(link.subscribers) >= _FOLLOWER_STREAMS:
            raise Refusal("exhausted", "a follower has at most %d streams at a time" % _FOLLOWER_STREAMS)
        if op in self._calls:
            link.end(number, self._calls[op](args) or {})
        elif op in self._streams:
            self._streams[op](link, number, args)
        else:
            raise Refusal("invalid", "unknown operation %s" % op[:64])
