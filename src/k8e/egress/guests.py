"""What the data plane holds of each sandbox: its connections, its lane, and what it may still ask."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass, field

from k8e.egress.desk import Member
from k8e.egress.lanes import Bucket
from k8e.egress.pump import Pair, SandboxLane
from k8e.egress.turns import Turns
from k8e.egress.upstream import Lookups
from k8e.model import EgressPolicy, SandboxId
from k8e.policy.decide import Answer, decide_address, decide_name

__all__ = ["Connection", "Guest", "Guests"]

_QUESTIONS_PER_S = 400
_LOOKUPS_AT_ONCE = 8
"""Of names by the host's resolver: a sandbox whose names are slow to find waits for itself only."""
_MODEST_FROM = 16
"""Connections of one sandbox from which on each gets small buffers."""


@dataclass(slots=True, eq=False)
class Connection:
    """One TCP connection of a sandbox, from accept to end."""

    guest: Guest
    client: socket.socket
    target: str
    """Where the sandbox dialled: an address that stands for a name, or a raw one."""
    port: int
    name: str = ""
    """Empty for a raw address."""
    protocol: str = "tcp"
    address: str = ""
    """Where it was dialled to in the end."""
    rule: str = ""
    may_be_anything: bool = False
    """Whether its protocol was nobody's affair when it was looked at."""
    task: asyncio.Task[None] | None = None
    """While it is being looked at or spoken for."""
    pair: Pair | None = None
    is_told: bool = False
    """Whether it was told that it is allowed, so that its end must be told too."""

    def answer(self) -> Answer:
        """What the policy of this moment says."""
        policy = self.guest.member.policy
        if self.name:
            return decide_name(policy, self.name, self.port)
        return decide_address(policy, self.target, self.port)


@dataclass(slots=True, eq=False)
class Guest:
    member: Member
    lane: SandboxLane = field(default_factory=SandboxLane)
    connections: set[Connection] = field(default_factory=set)
    lookups: Lookups = field(default_factory=lambda: Lookups(_LOOKUPS_AT_ONCE))
    questions: Bucket = field(default_factory=Bucket)
    turns: Turns = field(default_factory=Turns)

    @property
    def policy(self) -> EgressPolicy:
        return self.member.policy

    @property
    def is_full(self) -> bool:
        return len(self.connections) >= self.policy.connections

    @property
    def is_modest(self) -> bool:
        return len(self.connections) >= _MODEST_FROM

    def may_ask(self) -> bool:
        """Whether another DNS question is within its rate."""
        left = self.questions.left(time.monotonic())
        if left is not None and left < 1:
            return False
        self.questions.take(1)
        return True

    def take(self, member: Member) -> None:
        """The member as it is now."""
        self.member = member
        self.lane.set_rate(member.policy.bytes_per_s)


class Guests:
    """By sandbox; one comes into being when it first sends something."""

    def __init__(self) -> None:
        self._guests: dict[SandboxId, Guest] = {}

    def of(self, member: Member) -> Guest:
        guest = self._guests.get(member.sandbox)
        if guest is None:
            guest = self._guests[member.sandbox] = Guest(member)
            guest.questions = Bucket(_QUESTIONS_PER_S, _QUESTIONS_PER_S / 4, time.monotonic())
        if guest.member is not member or guest.lane.bucket.rate != member.policy.bytes_per_s:
            guest.take(member)
        return guest

    @property
    def connections(self) -> int:
        """Of all sandboxes."""
        return sum(len(guest.connections) for guest in self._guests.values())

    def known(self, member: Member) -> Guest | None:
        return self._guests.get(member.sandbox)

    def forget(self, member: Member) -> None:
        self._guests.pop(member.sandbox, None)
