"""What a store keeps and what can be done to it, as values: kinds of records, changes, and what became of them.

A change is made by a kind (`SESSIONS.put(record)`) and handed to `Store.commit`, which carries out all of one call or
none of them. Nothing here knows how a store is made: a change is what a key-value store with versions can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from k8e.engine.store.codec import Parts, decoder, encoded_with

__all__ = ["Change", "Changed", "Delete", "DeleteUnder", "Key", "Kind", "Put", "Stored"]

R = TypeVar("R")
Key: TypeAlias = tuple[str, ...]
"""Of a record, among those of its kind. What a record belongs to comes first: a run's begins with its session's."""
MayMiss: TypeAlias = Callable[[Mapping[str, object]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Write a record, whole."""

    kind: str
    key: Key
    record: object
    body: str
    """The record as JSON."""
    parts: Parts = field(repr=False, compare=False)
    """Of that JSON, for the next change of the same record."""
    if_version: int | None = None
    """Only in place of this version; 0 stands for no record at all."""
    if_there: bool = False
    """Only in place of another one, of whatever version; else nothing happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove a record; where there is none, nothing happens."""

    kind: str
    key: Key
    if_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteUnder:
    """Remove all records of a kind whose keys begin like this."""

    kind: str
    key: Key


Change: TypeAlias = Put | Delete | DeleteUnder


@dataclass(frozen=True, slots=True)
class Stored(Generic[R]):
    """A record as it is kept.

    Versions grow over all changes of a store, and none is used twice: a record that was deleted and written again never
    has a version that somebody remembers from before.
    """

    record: R
    version: int


@dataclass(frozen=True, slots=True)
class Changed(Generic[R]):
    """A record as it is since this version; None when it has been deleted."""

    kind: str
    key: Key
    version: int
    record: R | None


class Kind(Generic[R]):
    """All records of one class: their name in the store, and how their key is made of them.

    The fields of the class are the format. A field that is added needs a default, and a new format of the file
    (an empty step is enough), so that an older program refuses the file as a whole; one that is renamed or removed
    needs a step that changes what is there.
    """

    def __init__(
        self, name: str, record: type[R], key: Callable[[R], Key], *, may_miss: MayMiss = lambda _fields: False
    ) -> None:
        """`may_miss` says whether the server can do without one that is damaged, by the fields that it seems to have."""
        self.name = name
        self.key = key
        self.may_miss = may_miss
        self.decoded = decoder(record)
        """A record from its JSON. Raises: Malformed."""

    def put(self, record: R, *, if_version: int | None = None) -> Put:
        """Write it, in place of whatever is there.

        With a version, the commit raises Conflict unless exactly that one is there: 0 for a record that must be new.
        """
        body, parts = encoded_with(record, {})
        return Put(kind=self.name, key=self.key(record), record=record, body=body, parts=parts, if_version=if_version)

    def replace(self, record: R, *, former: Put | None = None) -> Put:
        """Write it in place of another one: what has been deleted meanwhile stays deleted.

        With the former change of the same record, parts that are the same objects need not be encoded again.
        """
        body, parts = encoded_with(record, former.parts if former is not None else {})
        return Put(kind=self.name, key=self.key(record), record=record, body=body, parts=parts, if_there=True)

    def delete(self, *key: str, if_version: int | None = None) -> Delete:
        """Remove it, if it is there. With a version, the commit raises Conflict unless exactly that one is there."""
        return Delete(kind=self.name, key=key, if_version=if_version)

    def delete_under(self, *key: str) -> DeleteUnder:
        """Remove all whose keys begin with these parts."""
        return DeleteUnder(kind=self.name, key=key)
