"""The session that commands share when nobody names one: `~/.k8e/sandbox/<tenant or default>/state.json`.

There is one for every account, which is a server and who one is there. Any number of processes may start at once: one
of them creates the session under a lock, the others find it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from k8e import whole
from k8e.client.errors import Conflict, InvalidRequest
from k8e.client.light.profiles import home

__all__ = ["SharedSession"]

LOCK_WAIT_S = 300.0
LOCK_STEP_S = 0.02
FORMER = ""
"""The account of a session that a client left which knew of no accounts: whoever has none tries that one first."""
ACCOUNTS = 64
"""As many are remembered, the newest."""


class SharedSession:
    def __init__(self, directory: Path, tenant: str, account: str = FORMER) -> None:
        self.directory = directory
        self.tenant = tenant
        self.account = account

    @classmethod
    def of(cls, tenant: str, account: str, environ: Mapping[str, str]) -> SharedSession:
        """The state of a tenant, or of nobody in particular. Raises: InvalidRequest when it is no name."""
        if "/" in tenant or tenant in {".", ".."} or "\0" in tenant:
            raise InvalidRequest(f"tenant: {tenant!r} cannot be used as a name")
        return cls(home(environ) / (tenant or "default"), tenant, account)

    @classmethod
    def every(cls, environ: Mapping[str, str]) -> list[SharedSession]:
        """The states of all tenants, and of nobody in particular."""
        found = [file.parent for file in home(environ).glob("*/state.json")]
        return [cls(each, "" if each.name == "default" else each.name) for each in found]

    def current(self) -> str:
        """The session in use, or nothing."""
        kept = self._kept()
        return kept.get(self.account) or kept.get(FORMER, "")

    def _kept(self) -> dict[str, str]:
        """Sessions by their accounts."""
        try:
            state = json.loads((self.directory / "state.json").read_text(encoding="utf-8"))
            if state.get("phase") != "active":
                return {}
            found = state.get("accounts", {FORMER: state["session_id"]})
            return {str(account): str(session_id) for account, session_id in found.items()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return {}

    def obtain(self, create: Callable[[], str], *, gone: str = "") -> str:
        """The session in use, created if there is none or if it is the one that is `gone`."""
        if (known := self.current()) and known != gone:
            return known
        with self._locked():
            if (known := self.current()) and known != gone:
                return known  # somebody else was faster
            made = create()
            others = {account: each for account, each in self._kept().items() if account != self.account}
            self._write({**others, self.account: made})
            return made

    def forget(self, session_id: str) -> None:
        """Drop this session, whoever's it was."""
        if session_id not in self._kept().values():
            return
        with self._locked():
            self._write({account: each for account, each in self._kept().items() if each != session_id})

    def _write(self, kept: Mapping[str, str]) -> None:
        newest = dict(list(kept.items())[-ACCOUNTS:])
        if not newest:
            (self.directory / "state.json").unlink(missing_ok=True)
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        # What stands beside the accounts is for clients that know of none.
        last = {"session_id": list(newest.values())[-1], "phase": "active", "tenant_id": self.tenant}
        state = {**last, "created_at": now, "accounts": newest}
        whole.replace(self.directory / "state.json", json.dumps(state).encode() + b"\n", mode=0o600)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.directory / "state.lock").open("a") as file:
            end = time.monotonic() + LOCK_WAIT_S
            while not try_lock(file.fileno()):
                if time.monotonic() > end:
                    raise Conflict(f"{file.name} has been locked for {LOCK_WAIT_S:.0f} s by another process")
                time.sleep(LOCK_STEP_S)
            yield


def try_lock(descriptor: int) -> bool:
    """Take the lock if it is free; where the system has no such locks there is nothing to wait for."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
