"""Where gVisor's `runsc` comes from: the first of four origins that passes a real probe.

1. a `runsc` on PATH that is new enough;
2. gVisor's own release archive, its SHA-512 verified;
3. a build of a pinned revision with the host's Go toolchain;
4. the distribution's package, from backports where the plain one is too old.

The choice is written down (`tools/runsc.json`) with its origin and reused until the file changes. A `runsc` that
cannot run a sandbox here within the probe's deadline is never chosen.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from k8e.errors import HostUnsupported
from k8e.setup.apt import install_backported
from k8e.setup.packages import find
from k8e.setup.report import Reporter, finish, work

__all__ = ["OLDEST", "PINNED", "Runsc", "acquire", "probe", "recorded", "version_date"]

PINNED = "v0.0.0-20260905035102-160fafc42237"
"""The revision that is built: the Go module's pseudo-version."""

OLDEST = 20240701
"""The first release date that is accepted: systrap works from there on."""

ARCHIVE = "https://storage.googleapis.com/gvisor/releases/release/latest"
ARCHIVE_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 20.0
BUILD_TIMEOUT_S = 1500.0
PROBE_WORD = "k8e-probe"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Runsc:
    """The chosen program; `stamp` is its size and time, so a replaced file is noticed."""

    path: str
    version: str
    origin: str
    stamp: str


Origin = Callable[[Path, Reporter, Mapping[str, str]], Path | None]


def version_date(text: str) -> int:
    """The date in a release's, a Debian package's or a Go module's version as YYYYMMDD; 0 if there is none."""
    found = re.search(r"20\d{6}", text)
    return int(found[0]) if found else 0


def _module_version(path: Path) -> str:
    """The version that Go wrote into a binary built by `go install`, which has no release name of its own."""
    found = re.search(rb"mod\tgvisor\.dev/gvisor\t(v[0-9A-Za-z.-]+)", path.read_bytes())
    return found[1].decode() if found else "unknown"


def _version(path: Path) -> str:
    ended = finish([str(path), "--version"], timeout_s=PROBE_TIMEOUT_S)
    found = re.search(r"runsc version (\S+)", ended.output)
    named = found[1] if found else "unknown"
    return named if version_date(named) else _module_version(path)


def probe(path: Path) -> str:
    """Run a real sandbox with it; empty when that works, else the reason."""
    with tempfile.TemporaryDirectory(prefix="k8e-probe-") as state:
        options = [
            f"--root={state}",
            "--network=none",
            "--ignore-cgroups",
            *([] if os.geteuid() == 0 else ["--rootless"]),
        ]
        argv = [str(path), *options, "do", "/bin/echo", PROBE_WORD]
        try:
            ended = finish(argv, timeout_s=PROBE_TIMEOUT_S)
        except OSError as error:
            return f"cannot be started: {error.strerror}"
    if ended.code is None:
        return f"no answer from a sandbox within {PROBE_TIMEOUT_S:.0f} s"
    if ended.code == 0 and PROBE_WORD in ended.output:
        return ""
    return f"exit code {ended.code}: {' '.join(ended.output.split())[-300:]}"


def _stamp(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size}-{stat.st_mtime_ns}"


def recorded(tools: Path) -> Runsc | None:
    """The earlier choice, if its file is still the one that was probed."""
    try:
        chosen = Runsc(**json.loads((tools / "runsc.json").read_text(encoding="utf-8")))
        return chosen if _stamp(Path(chosen.path)) == chosen.stamp else None
    except (OSError, ValueError, TypeError):
        return None


def _record(tools: Path, chosen: Runsc) -> None:
    unfinished = tools / "runsc.json.new"
    unfinished.write_text(json.dumps(asdict(chosen), indent=2) + "\n", encoding="utf-8")
    unfinished.replace(tools / "runsc.json")


def _from_path(tools: Path, report: Reporter, env: Mapping[str, str]) -> Path | None:
    found = find("runsc")
    return Path(found) if found else None


def _fetch(url: str, target: Path) -> str:
    """Download to `target` and return its SHA-512."""
    seen = hashlib.sha512()
    # SAFETY: the scheme is fixed above; the content is used only after its checksum matched.
    with urllib.request.urlopen(url, timeout=ARCHIVE_TIMEOUT_S) as answer, target.open("wb") as file:  # noqa: S310
        while chunk := answer.read(CHUNK_BYTES):
            seen.update(chunk)
            file.write(chunk)
    return seen.hexdigest()


def _from_archive(tools: Path, report: Reporter, env: Mapping[str, str]) -> Path | None:
    machine = os.uname().machine
    report.say("looking for gVisor in its release archive")
    with tempfile.TemporaryDirectory(dir=tools, prefix=".archive-") as directory:
        binary, checksum = Path(directory, "runsc"), Path(directory, "runsc.sha512")
        try:
            _fetch(f"{ARCHIVE}/{machine}/runsc.sha512", checksum)
            found = _fetch(f"{ARCHIVE}/{machine}/runsc", binary)
        except (OSError, urllib.error.URLError) as error:
            report.say(f"  not reached ({getattr(error, 'reason', error)})")
            return None
        if found != checksum.read_text(encoding="ascii").split()[0]:
            report.say("  its checksum does not match; not used")
            return None
        binary.chmod(0o755)
        return binary.rename(tools / "runsc-archive")


def _go() -> str | None:
    return find("go") or find("/usr/local/go/bin/go")


def _from_source(tools: Path, report: Reporter, env: Mapping[str, str]) -> Path | None:
    built = tools / f"runsc-{PINNED}"
    if built.is_file():
        return built
    go = _go()
    if go is None:
        return None
    report.say(f"building gVisor {PINNED} with {go} (a minute or two)")
    with tempfile.TemporaryDirectory(dir=tools, prefix=".build-") as directory:
        home = env.get("HOME", directory)
        go_env = {"GOPATH": f"{home}/go", **env, "HOME": home, "CGO_ENABLED": "0", "GOBIN": directory, "GOFLAGS": ""}
        # Only gVisor's own build system names its builds; without this one would call itself VERSION_MISSING.
        flags = f"-ldflags=-s -w -X gvisor.dev/gvisor/runsc/version.version={PINNED}"
        argv = [go, "install", "-trimpath", flags, f"gvisor.dev/gvisor/runsc@{PINNED}"]
        work(argv, label="building gVisor", report=report, timeout_s=BUILD_TIMEOUT_S, env=go_env)
        return Path(directory, "runsc").rename(built)


def _from_package(tools: Path, report: Reporter, env: Mapping[str, str]) -> Path | None:
    if os.geteuid() != 0 or find("apt-get") is None:
        return None
    report.say("installing the distribution's runsc")
    install_backported("runsc", is_enough=lambda version: version_date(version) >= OLDEST, report=report, env=env)
    return _from_path(tools, report, env)


ORIGINS: tuple[tuple[str, Origin], ...] = (
    ("found on PATH", _from_path),
    ("gVisor's release archive", _from_archive),
    ("built from source", _from_source),
    ("the distribution's package", _from_package),
)


def _judge(path: Path) -> tuple[str, str]:
    """Its version, and why it cannot be used (empty when it can)."""
    version = _version(path)
    if version_date(version) < OLDEST:
        return version, f"{version} is older than {OLDEST}"
    return version, probe(path)


def _try(name: str, origin: Origin, tools: Path, report: Reporter, env: Mapping[str, str]) -> Runsc | str:
    """The program from one origin, or why there is none."""
    try:
        path = origin(tools, report, env)
        if path is None:
            return f"{name}: not available"
        version, trouble = _judge(path)
    except (HostUnsupported, OSError) as error:
        return f"{name}: {error}"
    if trouble:
        return f"{name}: {path}: {trouble}"
    return Runsc(path=str(path), version=version, origin=name, stamp=_stamp(path))


def acquire(tools: Path, report: Reporter, *, env: Mapping[str, str]) -> Runsc:
    """The recorded choice, or a new one. Raises: HostUnsupported, with what each origin answered."""
    if chosen := recorded(tools):
        return chosen
    tools.mkdir(parents=True, exist_ok=True)
    troubles: list[str] = []
    for name, origin in ORIGINS:
        outcome = _try(name, origin, tools, report, env)
        if isinstance(outcome, Runsc):
            _record(tools, outcome)
            report.say(f"gVisor: {outcome.version} ({outcome.origin})")
            return outcome
        troubles.append(outcome)
    for leftover in tools.glob(".build-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    raise HostUnsupported("gVisor could not be had:\n  " + "\n  ".join(troubles))
