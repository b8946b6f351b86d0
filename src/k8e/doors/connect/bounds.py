"""What one door lets its callers take, in time and in number."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BOUNDS", "Bounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    head_s: float = 10.0
    """For a request's head to arrive, from the connection or from its first byte."""
    body_s: float = 60.0
    """For a request that is one message to arrive; a stream may be silent for as long as it likes."""
    idle_s: int = 60
    """How long a connection without a request is kept."""
    drain_s: float = 5.0
    """How long running calls may go on when the door closes."""
    last_words_s: float = 2.0
    """How long their answers may then take to reach callers that are slow to read."""
    connections: int = 2048
    """Of one user at a time, far fewer than the server may open."""
    pending: int = 128
    """Of those, connections whose first request has not come; whoever means it sends one at once. The operator has no
    bound but the one above."""
    arrivals_per_s: float = 2000.0
    """New connections of one user, but the operator; as many as there can be calls. Each costs a tenth of a millisecond."""
    closing: int = 8192
    """Connections of all users that were turned away and are closed a second later: one descriptor each, and nothing else."""


BOUNDS = Bounds()
