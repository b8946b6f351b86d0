"""The parts of the system that k8e drives, and how Debian and Ubuntu install them.

What is missing is decided by looking for the thing itself, never by a package's name, so a host that got a tool
from elsewhere is left alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k8e.errors import HostUnsupported
from k8e.setup.apt import apt, mend_packages
from k8e.setup.report import Step

__all__ = ["ADMIN_DIRECTORIES", "NEEDS", "Need", "advice", "find", "install", "missing", "names"]

UPDATE_TIMEOUT_S = 300.0
INSTALL_TIMEOUT_S = 1500.0
USUAL_S = 60.0
ADMIN_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where a plain user's PATH does not look, but the tools of a host's administrator live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One thing that must be found: a program by name, or a file by its path."""

    thing: str
    package: str
    reason: str
    is_required: bool = True


NEEDS = (
    Need(thing="runc", package="runc", reason="runs the `container` runtime"),
    Need(thing="nft", package="nftables", reason="keeps sandboxes off the network"),
    Need(thing="ip", package="iproute2", reason="makes network namespaces"),
    Need(thing="mkfs.ext4", package="e2fsprogs", reason="makes each sandbox's own disk"),
    Need(thing="mount", package="mount", reason="mounts each sandbox's own disk"),
    Need(thing="setpriv", package="util-linux", reason="gives each `container` sandbox a user of its own"),
    Need(thing="prlimit", package="util-linux", reason="limits the open files of `container` sandboxes"),
    Need(thing="python3", package="python3", reason="the agent's interpreter is copied from it"),
    Need(thing="git", package="git", reason="expected inside the default image"),
    Need(thing="curl", package="curl", reason="expected inside the default image"),
    Need(thing="/etc/ssl/certs/ca-certificates.crt", package="ca-certificates", reason="TLS inside sandboxes"),
    Need(thing="node", package="nodejs", reason="runs `--lang node` and `--lang ts`", is_required=False),
    Need(thing="npm", package="npm", reason="installs tsx for `--lang ts`", is_required=False),
)

Look = Callable[[str], str | None]


def find(thing: str) -> str | None:
    """The path of a program or file on this host, administrators' directories included."""
    if thing.startswith("/"):
        return thing if Path(thing).exists() else None
    return shutil.which(thing) or shutil.which(thing, path=os.pathsep.join(ADMIN_DIRECTORIES))


def missing(look: Look = find) -> tuple[Need, ...]:
    """What this host lacks, in the order of `NEEDS`."""
    return tuple(need for need in NEEDS if look(need.thing) is None)


def names(needs: Sequence[Need]) -> list[str]:
    """Each package once: some have several of the things."""
    return list(dict.fromkeys(need.package for need in needs))


def advice(needs: Sequence[Need]) -> str:
    """What is missing, why it matters, and the one command that installs it."""
    width = max(len(need.package) for need in needs)
    lines = [f"  {need.package:<{width}}  {need.reason}" for need in needs]
    command = f"apt-get install --no-install-recommends {' '.join(names(needs))}"
    return "\n".join(["missing on this host:", *lines, f"as root: {command}"])


def install(needs: Sequence[Need], step: Step, *, env: Mapping[str, str]) -> None:
    """Install them with apt, as root. Raises: HostUnsupported, saying what to do by hand."""
    if os.geteuid() != 0:
        raise HostUnsupported(advice(needs))
    if find("apt-get") is None:
        raise HostUnsupported(
            f"{advice(needs)}\nthis host has no apt-get: install the same with its own package manager"
        )
    packages = names(needs)
    step.doing(f"installing {len(packages)} with apt-get", usual_s=USUAL_S, most_s=UPDATE_TIMEOUT_S + INSTALL_TIMEOUT_S)
    mend_packages(step, env=env)
    apt(["apt-get", "update", "-q"], step, timeout_s=UPDATE_TIMEOUT_S, env=env)
    wanted = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    apt(wanted, step, timeout_s=INSTALL_TIMEOUT_S, env=env)
