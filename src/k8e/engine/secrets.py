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

from k8e.engine.store import Kind, Store
from k8e.errors import Exhausted, HostUnsupported, InvalidSpec
from k8e.model import OwnerId, SecretRef, SessionSpec

__all__ = ["MASK", "SECRETS", "Sealer", "SecretRecord", "SecretView", "Secrets", "check_references", "mask"]

MASK: Final = b"[secret]"
MAX_VALUE_BYTES: Final = 64 * 1024
MAX_PER_OWNER: Final = 256
MAX_REFERENCES: Final = 32
_MASK_FROM_BYTES: Final = 4
# A shorter value occurs in any text by chance; masking it would garble without hiding.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ENV_VAR = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecord:
    """One value as it is kept; what it is sealed for is in its key."""

    owner: OwnerId
    name: str
    key: str
    sealed: bytes
    updated_at: float


SECRETS: Final = Kind("secret", SecretRecord, lambda record: (record.owner, record.name, record.key))


class Secrets:
    """A file of its own, safe against power loss: a secret that was set must not come undone.

    Whoever changes one does so in a task that nobody cancels: what is listed follows what is written.
    """

    def __init__(self, path: Path, sealer: Sealer | None) -> None:
        self._store = Store(path, "secrets", survives_power_loss=True)
        path.chmod(0o600)
        self._sealer = sealer
        self._updated_at = {
            (record.owner, record.name, record.key): record.updated_at
            for record in (stored.record for stored in self._store.load(SECRETS))
        }
        """All there are, without their values."""
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
            is_new = (owner, name, key) not in self._updated_at
            if is_new and sum(whose == owner for whose, _, _ in self._updated_at) >= MAX_PER_OWNER:
                raise Exhausted(f"you already have {MAX_PER_OWNER} secrets: delete one first")
            record = SecretRecord(owner=owner, name=name, key=key, sealed=sealed, updated_at=time.time())
            await self._store.commit(SECRETS.put(record))
            self._updated_at[owner, name, key] = record.updated_at

    def list(self, owner: OwnerId | None) -> list[SecretView]:
        """An owner's, or everybody's."""
        known = sorted(each for each in self._updated_at if owner in (None, each[0]))
        return [
            SecretView(
                owner=whose,
                name=name,
                keys=tuple(key for _, _, key in of_one),
                updated_at=max(self._updated_at[each] for each in of_one),
            )
            for (whose, name), group in itertools.groupby(known, key=lambda each: each[:2])
            for of_one in (list(group),)
        ]

    async def delete(self, owner: OwnerId, name: str, key: str = "") -> bool:
        """Forget one key, or the whole secret when none is given; False when there was nothing."""
        async with self._setting:
            doomed = [each for each in self._updated_at if each[:2] == (owner, name) and key in ("", each[2])]
            await self._store.commit(*(SECRETS.delete(*each) for each in doomed))
            for each in doomed:
                del self._updated_at[each]
        return bool(doomed)

    def value(self, owner: OwnerId, name: str, key: str, *, field: str = "secret_refs") -> bytes:
        """One value, opened. Raises: InvalidSpec when the owner has no such secret, StoreFailed."""
        kept = self._store.get(SECRETS, owner, name, key)
        if kept is None:
            raise InvalidSpec(
                f"you have no secret {name}:{key}; set it with `k8e secret set {name}:{key}`", field=field
            )
        return self._need_sealer().unseal(kept.record.sealed, context=_context(owner, name, key))

    def environment(self, owner: OwnerId, references: Iterable[SecretRef]) -> dict[str, str]:
        """The variables that references stand for. Raises: InvalidSpec, StoreFailed."""
        return {
            each.env_var: self.value(owner, each.secret_name, each.key).decode("utf-8", "surrogateescape")
            for each in references
        }

    def close(self) -> None:
        self._store.close()

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
