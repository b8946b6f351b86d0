"""User namespaces made to order: an id map, limits that hold inside, and a descriptor that keeps them alive."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

__all__ = ["Extent", "Nascent", "create", "map_text"]

# A namespace can only be limited from inside, by somebody with capabilities there; and ids can only be
# mapped from outside. Hence the two-step conversation over the child's stdio.
_SCRIPT = 'printf u; read -r _; for pair; do echo "${pair#*=}" >"/proc/sys/user/${pair%%=*}" || exit 1; done; printf d; read -r _'


@dataclass(frozen=True, slots=True)
class Extent:
    """`count` ids from `inside` on are the host's ids from `outside` on."""

    inside: int
    outside: int
    count: int


def map_text(extents: tuple[Extent, ...]) -> str:
    """What goes into uid_map and gid_map."""
    return "".join(f"{extent.inside} {extent.outside} {extent.count}\n" for extent in extents)


def _expect(stream: IO[bytes], token: bytes) -> None:
    if stream.read(1) != token:
        raise OSError("unshare --user: the namespace could not be set up")


class Nascent:
    """A namespace on its way: `start` costs a fork, and `finish` finds most of the work done."""

    def __init__(self, child: subprocess.Popen[bytes], extents: tuple[Extent, ...]) -> None:
        self._child = child
        self._extents = extents

    @classmethod
    def start(cls, extents: tuple[Extent, ...], limits: Mapping[str, int] | None = None, *, owner: int = 0) -> Nascent:
        """`limits` are `user.*` sysctls without the prefix.

        What is counted inside is counted once more outside, for the user that made the namespace, against that user's
        own limits there: an `owner` other than root keeps it from using up what the host's root has.
        """
        pairs = [f"{name}={value}" for name, value in (limits or {}).items()]
        argv = [*_becoming(owner), "unshare", "--user", "--keep-caps", "--", "sh", "-c", _SCRIPT, "k8e", *pairs]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        return cls(child, extents)

    def finish(self) -> int:
        """The namespace as a close-on-exec descriptor, which keeps it alive. Raises: OSError."""
        words, answers = cast("IO[bytes]", self._child.stdin), cast("IO[bytes]", self._child.stdout)
        _expect(answers, b"u")
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{self._child.pid}/{kind}").write_text(map_text(self._extents), encoding="ascii")
        words.write(b"\n")
        _expect(answers, b"d")
        return os.open(f"/proc/{self._child.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """End the process that held it open so far."""
        self._child.kill()
        with self._child:
            pass


def _becoming(owner: int) -> list[str]:
    """The words that run a program as this user. CAP_SYS_ADMIN is kept: some hosts let nobody else make user namespaces."""
    if not owner:
        return []
    user = ["--reuid", str(owner), "--regid", str(owner), "--clear-groups"]
    return ["setpriv", *user, "--inh-caps", "+sys_admin", "--ambient-caps", "+sys_admin", "--"]


def create(extents: tuple[Extent, ...], limits: Mapping[str, int] | None = None) -> int:
    """A new user namespace as a descriptor. Raises: OSError."""
    nascent = Nascent.start(extents, limits)
    try:
        return nascent.finish()
    finally:
        nascent.close()
