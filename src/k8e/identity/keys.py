"""API keys: made by administrators, shown once, kept only as a hash in `<data>/server/apikeys.json`.

A key is 256 random bits as 64 hexadecimal digits. Its id is new each time, so a name that was deleted and given again
is another key: no certificate of the old one is good again. Its owner, though, is the one of that name, and has what
the name had.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from k8e import whole
from k8e.errors import Conflict, InvalidSpec, NotFound, StoreFailed
from k8e.identity.callers import Caller, Role
from k8e.model import OwnerId

__all__ = ["ApiKey", "KeyRing"]

KEY_BYTES = 32
PREFIXES = ("e2b_", "k8e-")
"""Some clients know a key by these; the digits are the same."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGITS = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    key_id: str
    name: str
    digest: str
    """SHA-256 of the digits; they are random, so nothing slower is needed."""
    role: Role
    owner: OwnerId
    created_at: float
    expires_at: float
    """Unix seconds; 0 means never."""

    def is_expired(self, now: float) -> bool:
        return bool(self.expires_at) and now >= self.expires_at

    def caller(self, via: str) -> Caller:
        return Caller(owner=self.owner, identity=f"key:{self.name}", role=self.role, via=via, key_id=self.key_id)


class KeyRing:
    """All keys of one server. Changes are on the disk before they are answered."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        """Read the keys. Raises: StoreFailed when the file is there but cannot be understood."""
        self._path = path
        self._clock = clock
        self._changing = threading.Lock()
        self._by_id = _load(path)
        self._by_digest = {key.digest: key for key in self._by_id.values()}

    def create(self, name: str, *, role: Role = Role.USER, owner: str = "", ttl_s: float = 0) -> tuple[ApiKey, str]:
        """A new key and its text, which nobody can be told again. Raises: InvalidSpec, Conflict."""
        if not _NAME.fullmatch(name):
            raise InvalidSpec("use 1-64 letters, digits, '.', '_' or '-', beginning with one of the first two",
                              field="name")  # fmt: skip
        text, now = secrets.token_hex(KEY_BYTES), self._clock()
        key = ApiKey(
            key_id=secrets.token_hex(8),
            name=name,
            digest=digest_of(text),
            role=role,
            owner=OwnerId(owner or f"key:{name}"),
            created_at=now,
            expires_at=now + ttl_s if ttl_s else 0,
        )
        with self._changing:
            if any(each.name == name for each in self._by_id.values()):
                raise Conflict(f"there is a key {name} already; delete it first, or choose another name")
            self._keep({**self._by_id, key.key_id: key})
        return key, text

    def delete(self, name: str) -> ApiKey:
        """Forget a key; from now on nothing that was made with it is good. Raises: NotFound."""
        with self._changing:
            found = next((each for each in self._by_id.values() if each.name == name), None)
            if found is None:
                raise NotFound("API key", name)
            self._keep({key_id: each for key_id, each in self._by_id.items() if key_id != found.key_id})
        return found

    def listed(self) -> list[ApiKey]:
        return sorted(self._by_id.values(), key=lambda key: key.name)

    def is_expired(self, key: ApiKey) -> bool:
        return key.is_expired(self._clock())

    def with_text(self, text: str) -> ApiKey | None:
        """The live key that has this text."""
        # A look-up by hash takes a time that tells nothing of any key's text.
        return self._alive(self._by_digest.get(digest_of(bare(text))))

    def with_id(self, key_id: str) -> ApiKey | None:
        """The live key that has this id."""
        return self._alive(self._by_id.get(key_id))

    def _alive(self, key: ApiKey | None) -> ApiKey | None:
        return None if key is None or key.is_expired(self._clock()) else key

    def _keep(self, keys: dict[str, ApiKey]) -> None:
        """On the disk first, then in force."""
        rows = [asdict(key) for key in keys.values()]
        text = json.dumps({"version": 1, "keys": rows}, indent=1)
        try:
            whole.replace(self._path, text.encode() + b"\n", mode=0o600, durable=True)
        except OSError as error:
            raise StoreFailed(f"cannot write {self._path}: {error}") from error
        self._by_id, self._by_digest = keys, {key.digest: key for key in keys.values()}


def bare(text: str) -> str:
    """The digits of a key in any form that it may be presented in; empty for what is no key."""
    prefix = next((prefix for prefix in PREFIXES if text.startswith(prefix)), "")
    digits = text.removeprefix(prefix).lower()
    return digits if _DIGITS.fullmatch(digits) else ""


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _load(path: Path) -> dict[str, ApiKey]:
    try:
        rows = json.loads(path.read_bytes())["keys"]
        keys = [ApiKey(**{**row, "role": Role(row["role"])}) for row in rows]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreFailed(
            f"{path} does not hold API keys ({error}): restore it, or remove it and make new keys"
        ) from error
    return {key.key_id: key for key in keys}
