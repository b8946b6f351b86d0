"""Which client certificates were issued, for which key, and which of them are revoked: `sandbox-issued.json`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from k8e import whole
from k8e.errors import StoreFailed

__all__ = ["Issued", "Ledger"]

KEPT_S = 30 * 24 * 3600.0
"""How long an entry outlives its certificate, for whoever looks back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    serial: str
    key_id: str
    key_name: str
    device_name: str
    fingerprint: str
    """SHA-256 of the certificate's DER, in hexadecimal digits."""
    issued_at: float
    expires_at: float
    revoked_at: float = 0
    """Unix seconds; 0 means it is not."""


class Ledger:
    """On the disk first, then in force."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        """Read the entries. Raises: StoreFailed when the file is there but cannot be understood."""
        self._path = path
        self._clock = clock
        self._changing = threading.Lock()
        self._issued = _load(path)

    def add(self, issued: Issued) -> None:
        with self._changing:
            past = self._clock() - KEPT_S
            kept = {name: each for name, each in self._issued.items() if each.expires_at > past}
            self._keep({**kept, issued.fingerprint: issued})

    def revoke(self, key_id: str) -> int:
        """Mark every certificate of a key; says how many there were."""
        with self._changing:
            mine = [each for each in self._issued.values() if each.key_id == key_id and not each.revoked_at]
            now = self._clock()
            if mine:
                self._keep({**self._issued, **{each.fingerprint: replace(each, revoked_at=now) for each in mine}})
        return len(mine)

    def good(self, fingerprint: str) -> Issued | None:
        """The entry of a certificate that was issued here, is not revoked, and has not ended."""
        found = self._issued.get(fingerprint)
        return found if found and not found.revoked_at and self._clock() < found.expires_at else None

    def _keep(self, issued: dict[str, Issued]) -> None:
        text = json.dumps({"version": 1, "issued": [asdict(each) for each in issued.values()]}, indent=1)
        try:
            whole.replace(self._path, text.encode() + b"\n", mode=0o600, durable=True)
        except OSError as error:
            raise StoreFailed(f"cannot write {self._path}: {error}") from error
        self._issued = issued


def _load(path: Path) -> dict[str, Issued]:
    try:
        entries = [Issued(**row) for row in json.loads(path.read_bytes())["issued"]]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreFailed(
            f"{path} does not hold issued certificates ({error}): restore it, or remove it, which revokes all of them"
        ) from error
    return {each.fingerprint: each for each in entries}
