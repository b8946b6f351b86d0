"""The data plane as the daemon's process runs it: with the host's own resolver, and a broker for secrets."""

from __future__ import annotations

from pathlib import Path

from k8e.egress.authority import Authority
from k8e.egress.broker import Broker, Trust
from k8e.egress.daemon import MakePlane
from k8e.egress.desk import Desk, Member
from k8e.egress.layout import Home
from k8e.egress.members import Member as KeptMember
from k8e.egress.plane import Plane
from k8e.egress.upstream import Resolve
from k8e.policy.targets import LocalRoute

__all__ = ["plane"]


def plane(data_dir: Path, *, resolve: Resolve | None = None) -> MakePlane:
    """How the daemon of a data directory makes its plane."""
    broker = Broker(_authority, Trust(Home.of(data_dir).trust))

    def make(desk: Desk, route: LocalRoute) -> Plane:
        return Plane(desk, route, resolve=resolve, broker=broker)

    return make


def _authority(member: Member) -> Authority:
    if not isinstance(member, KeptMember) or member.authority is None:
        raise TypeError("a member with grants has an authority")
    return member.authority
