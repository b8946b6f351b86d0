"""Calls without a door: straight into the service, as whoever the test likes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from k8e.byte_budget import ByteBudget, ByteReservation
from k8e.doors.service import IdentityRpcs, ServerFacts, Service
from k8e.engine.engine import Engine
from k8e.identity import Office
from k8e.identity.callers import Caller, Role
from k8e.model import OwnerId, SessionSpec

__all__ = ["StraightCall", "as_key", "as_uid", "service_over"]


@dataclass(slots=True)
class StraightCall:
    """What a door would hand to the service; keeps what is written and trailed."""

    caller: Caller
    speaks_for: OwnerId | None = None
    written: list[Message] = field(default_factory=list)
    trailed: dict[str, Any] = field(default_factory=dict)
    traceparent: str = ""
    reservation: ByteReservation = field(default_factory=lambda: ByteBudget().open("test"))

    @property
    def owner(self) -> OwnerId:
        return self.speaks_for or self.caller.owner

    async def write(self, message: Message) -> None:
        self.written.append(message)

    def trail(self, **metadata: str | int | bool) -> None:
        self.trailed |= metadata


def as_uid(uid: int, *, role: Role = Role.USER, speaks_for: str | None = None) -> StraightCall:
    owner = OwnerId(f"uid:{uid}")
    caller = Caller(owner=owner, identity=owner, role=role, via="unix")
    return StraightCall(caller, OwnerId(speaks_for) if speaks_for else None)


def as_key(name: str, *, owner: str, role: Role = Role.USER, via: str = "key") -> StraightCall:
    return StraightCall(Caller(owner=OwnerId(owner), identity=f"key:{name}", role=role, via=via))


def service_over(engine: Engine, root: Path) -> Service:
    """The whole service; keys and certificates live under `root`."""
    office = Office.open(root / "server", clock=time.time)
    facts = ServerFacts(
        pid=1, data_dir="", version="0", doors=dict, ca_fingerprint=office.authority.fingerprint, stop=lambda _: None
    )
    return Service(engine, defaults=SessionSpec(), facts=facts, identity=IdentityRpcs(office))
