"""Secrets of owners: kept sealed, named by their owner only, and opened at the moment a command needs them.

A reference names an entry of this store and nothing else: no path, no file and no key of the server can be reached
by one. Values leave through `environment` and `value` alone; no view, event, log line or `repr` holds one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from k8e.engine.store import Change, Store
from k8e.errors import Exhausted, HostUnsupported, InvalidSpec
from k8e.model import OwnerId, SecretRef, SessionSpec

__all__ = ["MASK", "Sealer", "SecretView", "Secrets", "check_references", "mask"]

MASK: Final = b"[secret]"
MAX_VALUE_BYTES: Final = 64 * 1024
MAX_PER_OWNER: Final = 256
MAX_REFERENCES: Final = 32
_MASK_FROM_BYTES: Final = 4
# A shorter value occurs in any text by chance; masking it would garble without hiding.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ENV_VAR = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SCHEMA: Final = """
CREATE TABLE secrets (
    owner TEXT NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL, sealed BLOB NOT NULL, updated_at REAL NOT NULL,
    PRIMARY KEY (owner, name, key)) STRICT;
"""


class Sealer(Protocol):
    """Makes values unreadable at rest; the context must be the same for both."""

    def seal(self, plain: bytes, *, context: bytes) -> bytes: ...
    def unseal(self, sealed: bytes, *, context: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretView:
    """What may be shown of a secret: that it is there."""

    owner: OwnerId
    name: str
    keys: tuple[str, ...]
    updated_at: float


class Secrets:
    """A file of its own, safe against power loss: a secret that was set must not come undone."""

    def __init__(self, path: Path, sealer: Sealer | None) -> None:
        self._store = Store(path, schema=(_SCHEMA,), synchronous="FULL")
        path.chmod(0o600)
        self._sealer = sealer
        self._setting = asyncio.Lock()

    async def set(self, owner: OwnerId, name: str, key: str, value: bytes) -> None:
        """Keep a value, in place of one that was there. Raises: InvalidSpec, Exhausted, HostUnsupported."""
        check_name(name, field="name")
        check_name(key, field="key")
        if not 0 < len(value) <= MAX_VALUE_BYTES:
            raise InvalidSpec(f"a secret has 1 to {MAX_VALUE_BYTES} bytes, this one has {len(value)}", field="value")
        if b"\0" in value:
            raise InvalidSpec("a NUL byte cannot be in an environment variable", field="value")
        sealed = self._need_sealer().seal(value, context=_context(owner, name, key))
        async with self._setting:
            if self._sealed(owner, name, key) is None and self._count(owner) >= MAX_PER_OWNER:
                raise Exhausted(f"you already have {MAX_PER_OWNER} secrets: delete one first")
            await self._store.commit(
                Change("INSERT OR REPLACE INTO secrets VALUES (?,?,?,?,?)", (owner, name, key, sealed, time.time()))
            )

    def list(self, owner: OwnerId | None) -> list[SecretView]:
        """An owner's, or everybody's."""
        rows = self._store.rows(
            "SELECT owner, name, key, updated_at FROM secrets WHERE owner=? OR ? IS NULL ORDER BY owner, name, key",
            (owner, owner),
        )
        return [
            SecretView(
                owner=whose,
                name=name,
                keys=tuple(row["key"] for row in of_one),
                updated_at=max(row["updated_at"] for row in of_one),
            )
            for (whose, name), group in itertools.groupby(rows, key=lambda row: (OwnerId(row["owner"]), row["name"]))
            for of_one in (list(group),)
        ]

    async def delete(self, owner: OwnerId, name: str, key: str = "") -> bool:
        """Forget one key, or the whole secret when none is given; False when there was nothing."""
        keys = [
            row["key"] for row in self._store.rows("SELECT key FROM secrets WHERE owner=? AND name=?", (owner, name))
        ]
        doomed = [each for each in keys if key in ("", each)]
        await self._store.commit(
            *(Change("DELETE FROM secrets WHERE owner=? AND name=? AND key=?", (owner, name, each)) for each in doomed)
        )
        return bool(doomed)

    def value(self, owner: OwnerId, name: str, key: str, *, field: str = "secret_refs") -> bytes:
        """One value, opened. Raises: InvalidSpec when the owner has no such secret, StoreFailed."""
        sealed = self._sealed(owner, name, key)
        if sealed is None:
            raise InvalidSpec(
                f"you have no secret {name}:{key}; set it with `k8e secret set {name}:{key}`", field=field
            )
        return self._need_sealer().unseal(sealed, context=_context(owner, name, key))

    def environment(self, owner: OwnerId, references: Iterable[SecretRef]) -> dict[str, str]:
        """The variables that references stand for. Raises: InvalidSpec, StoreFailed."""
        return {
            each.env_var: self.value(owner, each.secret_name, each.key).decode("utf-8", "surrogateescape")
            for each in references
        }

    def close(self) -> None:
        self._store.close()

    def _sealed(self, owner: OwnerId, name: str, key: str) -> bytes | None:
        rows = self._store.rows("SELECT sealed FROM secrets WHERE owner=? AND name=? AND key=?", (owner, name, key))
        return bytes(rows[0]["sealed"]) if rows else None

    def _count(self, owner: OwnerId) -> int:
        return int(self._store.rows("SELECT count(*) AS n FROM secrets WHERE owner=?", (owner,))[0]["n"])

    def _need_sealer(self) -> Sealer:
        if self._sealer is None:
            raise HostUnsupported("this engine was started without a key for secrets")
        return self._sealer


def check_name(text: str, *, field: str) -> str:
    """A secret's name or key. Raises: InvalidSpec."""
    if not _NAME.fullmatch(text):
        raise InvalidSpec("use 1-63 letters, digits, '.', '_' or '-', starting with a letter or digit", field=field)
    return text


def check_references(spec: SessionSpec) -> None:
    """What can be said of a session's references without looking anything up. Raises: InvalidSpec."""
    for field, references in (("secret_refs", spec.secret_refs), ("brokered_secrets", spec.brokered)):
        if len(references) > MAX_REFERENCES:
            raise InvalidSpec(f"at most {MAX_REFERENCES} in one session, not {len(references)}", field=field)
        for each in references:
            check_name(each.secret_name, field=f"{field}.secret_name")
            check_name(each.key, field=f"{field}.key")
            if not _ENV_VAR.fullmatch(each.env_var):
                raise InvalidSpec("use letters, digits and '_', not starting with a digit", field=f"{field}.env_var")
    names = [*spec.env, *(ref.env_var for ref in spec.secret_refs), *(each.env_var for each in spec.brokered)]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSpec(f"{name} is set twice", field="secret_refs" if spec.secret_refs else "brokered_secrets")


def mask(text: bytes, values: Sequence[bytes], *, was_cut: bool = False) -> bytes:
    """Text without the values; nor does it end with the beginning of one when it `was_cut`."""
    for value in sorted(values, key=len, reverse=True):
        if len(value) < _MASK_FROM_BYTES:
            continue
        text = text.replace(value, MASK)
        begin = max(0, len(text) - len(value) + 1)
        while was_cut and (begin := text.find(value[:_MASK_FROM_BYTES], begin)) >= 0:
            if value.startswith(text[begin:]):
                text = text[:begin] + MASK
                break
            begin += 1
    return text


def _context(owner: OwnerId, name: str, key: str) -> bytes:
    return json.dumps([owner, name, key]).encode()
