"""A package in a newer version than the distribution's own, from its backports.

The host's own list of sources is never changed: the backports suite is read from a private list made of the
addresses that the host already uses, for one command only.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from k8e.errors import HostUnsupported
from k8e.setup.report import Step

__all__ = ["apt", "backports_sources", "candidate", "codename", "install_backported", "mend_packages"]

LOCK_S = 300
"""How long apt waits for another one to end."""
INTERRUPTED = Path("/var/lib/dpkg/updates")
MEND_TIMEOUT_S = 300.0


def codename(os_release: str) -> str:
    """The distribution's code name, as in bookworm."""
    found = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', os_release, re.MULTILINE)
    return found[1] if found else ""


def candidate(policy: str) -> str:
    """The version that `apt-cache policy` would install; empty if there is none."""
    found = re.search(r"^\s*Candidate: (\S+)$", policy, re.MULTILINE)
    return found[1] if found and found[1] != "(none)" else ""


def backports_sources(suite: str, one_line: str, deb822: str) -> str:
    """Source lines for the suite's backports, on the same servers and keys as the suite itself."""
    lines = [
        f"deb {options}{uri} {suite}-backports main"
        for options, uri in re.findall(rf"^deb\s+(\[[^]]*\]\s+)?(\S+)\s+{suite}\s", one_line, re.MULTILINE)
    ]
    for stanza in re.split(r"\n\s*\n", deb822):
        fields = dict(re.findall(r"^(\S+):[ \t]*(.+)$", stanza, re.MULTILINE))
        if suite in fields.get("Suites", "").split():
            key = fields.get("Signed-By", "")
            lines += [
                f"deb {f'[signed-by={key}] ' if key else ''}{uri} {suite}-backports main"
                for uri in fields["URIs"].split()
            ]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _read_all(paths: list[Path]) -> str:
    return "\n\n".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())


def _host_sources(suite: str, etc: Path) -> str:
    one_line = _read_all([etc / "apt/sources.list", *sorted((etc / "apt/sources.list.d").glob("*.list"))])
    deb822 = _read_all(sorted((etc / "apt/sources.list.d").glob("*.sources")))
    return backports_sources(suite, one_line, deb822)


def apt(arguments: list[str], step: Step, *, timeout_s: float, env: Mapping[str, str]) -> str:
    """Run one of apt's programs. Raises: HostUnsupported."""
    program, *rest = arguments
    options = ["-o", f"DPkg::Lock::Timeout={LOCK_S}"]
    quiet = {**env, "DEBIAN_FRONTEND": "noninteractive"}
    # An installation that is cut off leaves packages half installed.
    is_cuttable = "install" not in rest
    return step.run([program, *options, *rest], timeout_s=timeout_s, env=quiet, is_cuttable=is_cuttable)


def mend_packages(step: Step, *, env: Mapping[str, str]) -> None:
    """Finish what a killed package manager left half done; without this apt refuses to install anything."""
    # The same sign that apt goes by.
    if any(name.name.isdecimal() for name in INTERRUPTED.glob("*")):
        quiet = {**env, "DEBIAN_FRONTEND": "noninteractive"}
        step.run(["dpkg", "--configure", "-a"], timeout_s=MEND_TIMEOUT_S, env=quiet, is_cuttable=False)


def install_backported(
    package: str,
    *,
    is_enough: Callable[[str], bool],
    step: Step,
    env: Mapping[str, str],
    timeout_s: float,
    etc: Path = Path("/etc"),
) -> None:
    """Install a package, from backports if the plain version is not enough. Raises: HostUnsupported."""
    mend_packages(step, env=env)
    apt(["apt-get", "update", "-q"], step, timeout_s=timeout_s, env=env)
    if is_enough(candidate(apt(["apt-cache", "policy", package], step, timeout_s=timeout_s, env=env))):
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", package]
        apt(install, step, timeout_s=timeout_s, env=env)
        return
    suite = codename((etc / "os-release").read_text(encoding="utf-8"))
    sources = _host_sources(suite, etc)
    if not suite or not sources.strip():
        raise HostUnsupported(f"no new enough {package} in this distribution, and its backports are not known here")
    _install_from(sources, f"{suite}-backports", package, step, timeout_s, env)


def _install_from(sources: str, suite: str, package: str, step: Step, timeout_s: float, env: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="k8e-apt-") as directory:
        listing = Path(directory, "sources.list")
        listing.write_text(sources, encoding="utf-8")
        # Only this list is read, and the host's other downloaded lists are kept.
        only = [
            "-o",
            f"Dir::Etc::sourcelist={listing}",
            "-o",
            "Dir::Etc::sourceparts=-",
            "-o",
            "APT::Get::List-Cleanup=0",
        ]
        apt(["apt-get", *only, "update", "-q"], step, timeout_s=timeout_s, env=env)
        wanted = ["install", "-y", "-q", "--no-install-recommends", "-t", suite, package]
        apt(["apt-get", *only, *wanted], step, timeout_s=timeout_s, env=env)
