"""User namespaces made to order: an id map, limits that hold inside, and a descriptor that keeps them alive."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

__all__ = ["Extent", "create", "map_text"]

_TIMEOUT_S = 10.0

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


def create(extents: tuple[Extent, ...], limits: Mapping[str, int] | None = None) -> int:
    """A new user namespace as a close-on-exec descriptor; `limits` are `user.*` sysctls without the prefix."""
    pairs = [f"{name}={value}" for name, value in (limits or {}).items()]
    argv = ["unshare", "--user", "--keep-caps", "--", "sh", "-c", _SCRIPT, "k8e", *pairs]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        words, answers = cast("IO[bytes]", child.stdin), cast("IO[bytes]", child.stdout)
        _expect(answers, b"u")
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{child.pid}/{kind}").write_text(map_text(extents), encoding="ascii")
        words.write(b"\n")
        _expect(answers, b"d")
        namespace = os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        words.close()
        child.wait(_TIMEOUT_S)
    return namespace
