"""The sandboxes that have a network: by address for the data plane, by name for the server, on disk for the next daemon.

The values of grants stay in memory; whoever gave them gives them again. What they are for is written down, so that until then
their placeholders are held back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from k8e.egress.authority import Authority
from k8e.egress.book import Book
from k8e.egress.ruleset import FIRST_INDEX, LAST_INDEX, address
from k8e.model import EgressPolicy, Grant, SandboxId
from k8e.policy import wire

__all__ = ["Member", "Members"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Member:
    """One sandbox. Without a policy of its own it reaches nothing."""

    sandbox: SandboxId
    index: int
    policy: EgressPolicy = field(default_factory=EgressPolicy)
    book: Book = field(default_factory=Book)
    grants: tuple[Grant, ...] = ()
    """One without a value has not been given again yet, or its secret is gone: its placeholder goes nowhere."""
    authority: Authority | None = None
    """The one that this sandbox alone trusts; made with the first grant."""

    @property
    def address(self) -> str:
        return address(self.index)


class Members:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._by_name: dict[SandboxId, Member] = {}
        self._by_address: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, sandbox: SandboxId) -> Member | None:
        return self._by_name.get(sandbox)

    def at(self, source: str) -> Member | None:
        return self._by_address.get(source)

    def load(self) -> None:
        """What the last daemon left. A file that cannot be understood is no member: nothing passes for it."""
        for path in self._directory.glob(".*.partial"):
            path.unlink(missing_ok=True)
        for path in self._directory.glob("*.json"):
            try:
                self._enter(_from_json(SandboxId(path.stem), path.read_text(encoding="utf-8")))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                _log.error("a member's file is damaged", extra={"file": str(path), "error": str(error)})
                path.unlink(missing_ok=True)

    def add(self, member: Member) -> None:
        self.save(member)
        self._enter(member)

    def save(self, member: Member) -> None:
        """Durable against our crash, not against the machine's: no sandbox survives that either. Raises: OSError."""
        partial = self._directory / f".{member.sandbox}.partial"
        partial.touch(mode=0o600)
        partial.write_text(_to_json(member), encoding="utf-8")
        partial.replace(self._path(member.sandbox))

    def unwrite(self, sandbox: SandboxId) -> None:
        """What its file says holds no more: until it is saved again, our death takes its network away."""
        self._path(sandbox).unlink(missing_ok=True)

    def remove(self, sandbox: SandboxId) -> None:
        """From here on its address is nobody's."""
        member = self._by_name.pop(sandbox, None)
        if member is not None:
            del self._by_address[member.address]
        self.unwrite(sandbox)

    def _enter(self, member: Member) -> None:
        self._by_name[member.sandbox] = member
        self._by_address[member.address] = member

    def _path(self, sandbox: SandboxId) -> Path:
        return self._directory / f"{sandbox}.json"


def _to_json(member: Member) -> str:
    return json.dumps(
        {
            "index": member.index,
            "policy": wire.to_json(member.policy),
            "book": member.book.to_json(),
            "authority": member.authority.dump() if member.authority is not None else "",
            "grants": [[grant.host, grant.header, grant.placeholder] for grant in member.grants],
        }
    )


def _from_json(sandbox: SandboxId, text: str) -> Member:
    fields = json.loads(text)
    index = int(fields["index"])
    if not FIRST_INDEX <= index <= LAST_INDEX:
        raise ValueError(f"no index of a slot: {index}")
    return Member(
        sandbox=sandbox,
        index=index,
        policy=wire.from_json(fields["policy"]),
        book=Book.from_json(fields["book"]),
        authority=Authority.load(fields["authority"]) if fields["authority"] else None,
        grants=tuple(
            Grant(host=host, header=header, placeholder=word, value="")
            for host, header, word in fields.get("grants", ())
        ),
    )
