"""Which gateway holds which sandbox of a machine: small files that every gateway of the machine sees.

- A sandbox's file is written before anything of the sandbox exists and removed after its last trace. A trace without a
  file is of a probe, or left by a version without these files: it is removed where no other gateway lives.
- A gateway lives while it holds the lock on its own file, and until its lease is over after that. Nothing of a living
  gateway is touched; what a dead one has left is for any other to take over.
- Each taking over raises the epoch, by which the sandbox's agent tells its owner from an earlier one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from k8e import whole
from k8e.errors import Conflict
from k8e.model import SandboxId
from k8e.wire.aio import Credentials

__all__ = ["LEASE_S", "SandboxOwners"]

LEASE_S: Final = 3600.0
"""How long a gateway that is not running is waited for before others remove what it has left on a shared machine."""

_SECRET_BYTES: Final = 32
_RENEW_AT_MOST_EVERY_S: Final = 1.0
_LOCK_S: Final = 5.0
_LOCK_RETRY_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owner:
    gateway: str
    epoch: int
    secret: str


class SandboxOwners:
    """As one gateway sees them. Each call reads or writes a small file or two; `take` may also wait for another gateway."""

    def __init__(self, directory: Path, gateway: str, *, lease_s: float = LEASE_S) -> None:
        """The gateway lives from now on. Raises: Conflict while another process is this gateway."""
        self._sandboxes = directory / "sandboxes"
        self._gateways = directory / "gateways"
        for path in (directory, self._sandboxes, self._gateways):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._gateway = gateway
        self._lease_s = lease_s
        self._mine = _locked(self._gateways / gateway)
        try:
            self.renew()
            if not self._others_live():
                whole.clear(self._sandboxes)
        except BaseException:
            os.close(self._mine)
            raise

    @property
    def renew_every_s(self) -> float:
        return max(self._lease_s / 3, _RENEW_AT_MOST_EVERY_S)

    def renew(self) -> None:
        """The lease begins anew."""
        os.utime(self._mine)

    def close(self) -> None:
        """The gateway stops; its lease runs from now."""
        try:
            self.renew()
        finally:
            os.close(self._mine)

    def make(self, sandbox: SandboxId) -> Credentials:
        """A sandbox that is about to be made is ours."""
        owner = _Owner(gateway=self._gateway, epoch=1, secret=secrets.token_hex(_SECRET_BYTES))
        self._write(sandbox, owner)
        return _credentials(owner)

    def take(self, sandbox: SandboxId) -> Credentials | None:
        """Take over one of ours from an earlier run, or one whose gateway is gone for longer than its lease.

        Returns: None where a living gateway holds it, nobody ever did, or this cannot be written down.
        Raises: OSError when it cannot be seen whose it is.
        """
        with self._alone():
            owner = self._read(sandbox)
            if owner is None or not (owner.gateway == self._gateway or self._is_over(owner.gateway)):
                return None
            taken = _Owner(gateway=self._gateway, epoch=owner.epoch + 1, secret=owner.secret)
            try:
                self._write(sandbox, taken)
            except OSError:
                # On a full disk, say. Of ours the agent serves us at the epoch that we had, too; another's is not needed.
                return _credentials(owner) if owner.gateway == self._gateway else None
            return _credentials(taken)

    def holds(self, sandbox: SandboxId, epoch: int) -> bool:
        """Whether it is still ours as it was taken at this epoch. Raises: OSError when that cannot be seen now."""
        owner = self._read(sandbox)
        return owner is not None and (owner.gateway, owner.epoch) == (self._gateway, epoch)

    def may_remove(self, sandbox: SandboxId) -> bool:
        """Whether no other gateway can miss it. Raises: OSError when that cannot be seen now."""
        owner = self._read(sandbox)
        if owner is None:
            return not self._others_live()
        return owner.gateway == self._gateway or self._is_over(owner.gateway)

    def forget(self, sandbox: SandboxId) -> None:
        """Nothing of it is left."""
        (self._sandboxes / sandbox).unlink(missing_ok=True)

    def known(self) -> frozenset[SandboxId]:
        """All that have a file, whosever they are."""
        return frozenset(SandboxId(path.name) for path in self._sandboxes.iterdir() if not path.name.startswith("."))

    def _others_live(self) -> bool:
        names = [path.name for path in self._gateways.iterdir()]
        return any(name != self._gateway and not self._is_over(name) for name in names)

    def _is_over(self, gateway: str) -> bool:
        """Whether nobody has its lock, and nobody has had it for as long as a lease."""
        try:
            file = os.open(self._gateways / gateway, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return time.time() - os.fstat(file).st_mtime > self._lease_s
        except BlockingIOError:
            return False
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Of two gateways that want the same sandbox one comes first."""
        directory = os.open(self._sandboxes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)

    def _read(self, sandbox: SandboxId) -> _Owner | None:
        """Raises: OSError. A file that a loss of power has emptied is as good as none: its sandbox has lost its power, too."""
        try:
            fields = json.loads((self._sandboxes / sandbox).read_text(encoding="ascii"))
            owner = _Owner(gateway=fields["gateway"], epoch=int(fields["epoch"]), secret=fields["secret"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None
        return owner if isinstance(owner.gateway, str) and isinstance(owner.secret, str) else None

    def _write(self, sandbox: SandboxId, owner: _Owner) -> None:
        whole.replace(self._sandboxes / sandbox, json.dumps(asdict(owner)).encode("ascii"), mode=0o600)


def _locked(path: Path) -> int:
    """A descriptor of this file that has its lock. Raises: Conflict."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up_at = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # For a moment also somebody who looks whether we live.
            if time.monotonic() > give_up_at:
                os.close(file)
                raise Conflict(f"another process has {path} locked and holds its sandboxes: stop it first") from None
            time.sleep(_LOCK_RETRY_S)
        else:
            return file


def _credentials(owner: _Owner) -> Credentials:
    return Credentials(secret=owner.secret, epoch=owner.epoch)
