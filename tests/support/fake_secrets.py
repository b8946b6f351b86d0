"""Secrets as the doors' fake engine keeps them: in memory, by owner."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from k8e.errors import InvalidSpec
from k8e.model import OwnerId, SecretRef

__all__ = ["FakeSecrets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSecret:
    owner: OwnerId
    name: str
    keys: tuple[str, ...]
    updated_at: float


class FakeSecrets:
    def __init__(self) -> None:
        self._values: dict[tuple[OwnerId, str, str], bytes] = {}

    async def set_secret(self, owner: OwnerId, name: str, key: str, value: bytes) -> None:
        if not value:
            raise InvalidSpec("is empty", field="value")
        self._values[owner, name, key] = value

    def list_secrets(self, owner: OwnerId | None) -> list[FakeSecret]:
        found = [each for each in self._values if owner in {None, each[0]}]
        return [
            FakeSecret(
                owner=who,
                name=name,
                keys=tuple(sorted(each[2] for each in found if each[:2] == (who, name))),
                updated_at=1.5,
            )
            for who, name in sorted({each[:2] for each in found})
        ]

    async def delete_secret(self, owner: OwnerId, name: str, key: str = "") -> bool:
        doomed = [each for each in self._values if each[:2] == (owner, name) and key in ("", each[2])]
        for each in doomed:
            del self._values[each]
        return bool(doomed)

    def secret_env(self, owner: OwnerId, refs: Iterable[SecretRef]) -> dict[str, str]:
        """The variables of references. Raises: InvalidSpec."""
        try:
            return {ref.env_var: self._values[owner, ref.secret_name, ref.key].decode() for ref in refs}
        except KeyError as error:
            raise InvalidSpec("no such secret", field="secret_refs") from error
