"""Where gVisor's `runsc` comes from: the first of four origins that passes a real probe.

1. a `runsc` on PATH that is new enough;
2. the release that the operator has named with its SHA-512, from gVisor's own archive: what that server says of itself proves nothing;
3. a build of a pinned revision with the host's Go toolchain, every module of it checked against a hash that is ours (`gvisor_module/go.sum`);
4. the distribution's package, from backports where the plain one is too old.

All of them together have a limited time. The choice is written down (`tools/runsc.json`) with its origin and reused until the file changes. A `runsc` that
cannot run a sandbox here within the probe's deadline is never chosen.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from k8e.errors import HostUnsupported
from k8e.setup.apt import install_backported
from k8e.setup.packages import find
from k8e.setup.programs import finish
from k8e.setup.report import Step, duration

__all__ = ["OLDEST", "PINNED", "TIMEOUT_S", "Runsc", "acquire", "probe", "recorded", "version_date", "will_be_built"]

PINNED = "v0.0.0-20260905035102-160fafc42237"
"""The revision that is built: the Go module's pseudo-version."""

OLDEST = 20240701
"""The first release date that is accepted: systrap works from there on."""

MODULE = Path(__file__).parent / "gvisor_module"
"""The Go module in which it is built."""
ARCHIVE = "https://storage.googleapis.com/gvisor/releases/release"
ARCHIVE_TIMEOUT_S = 5.0
ARCHIVE_USUAL_S = 30.0
PROBE_TIMEOUT_S = 20.0
BUILD_CORE_S = 240.0
"""What building it takes of one core, from nothing."""
TIMEOUT_S = 900.0
"""For all origins together, unless the operator gives it more."""
PROBE_WORD = "k8e-probe"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Runsc:
    """The chosen program; `stamp` is its size and time, so a replaced file is noticed."""

    path: str
    version: str
    origin: str
    stamp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What every origin gets."""

    tools: Path
    step: Step
    env: Mapping[str, str]
    end: float
    """By the monotonic clock."""
    release: str
    """Of the archive: DATE@sha512:SUM, or nothing."""

    @property
    def left_s(self) -> float:
        return max(0.0, self.end - time.monotonic())


Origin = Callable[[Attempt], Path | None]


def version_date(text: str) -> int:
    """The date in a release's, a Debian package's or a Go module's version as YYYYMMDD; 0 if there is none."""
    found = re.search(r"20\d{6}", text)
    return int(found[0]) if found else 0


def _module_version(path: Path) -> str:
    """The version that Go wrote into a binary built by Go alone, which has no release name of its own."""
    found = re.search(rb"(?:mod|dep)\tgvisor\.dev/gvisor\t(v[0-9A-Za-z.-]+)", path.read_bytes())
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


def _from_path(attempt: Attempt) -> Path | None:
    found = find("runsc")
    return Path(found) if found else None


def _fetch(url: str, target: Path, attempt: Attempt) -> str:
    """Download to `target` and return its SHA-512."""
    seen = hashlib.sha512()
    # SAFETY: the scheme is fixed above; the content is used only if it has the checksum that the operator gave.
    with urllib.request.urlopen(url, timeout=ARCHIVE_TIMEOUT_S) as answer, target.open("wb") as file:  # noqa: S310
        while chunk := answer.read(CHUNK_BYTES):
            if not attempt.left_s:
                raise TimeoutError("the time for it is over")
            attempt.step.tick()
            seen.update(chunk)
            file.write(chunk)
    return seen.hexdigest()


def _from_archive(attempt: Attempt) -> Path | None:
    version, _, checksum = attempt.release.partition("@sha512:")
    if not checksum:
        raise HostUnsupported("no release is named (K8E_SANDBOX_GVISOR_RELEASE=DATE@sha512:SUM)")
    attempt.step.doing("fetching it from its release archive", usual_s=ARCHIVE_USUAL_S, most_s=attempt.left_s)
    with tempfile.TemporaryDirectory(dir=attempt.tools, prefix=".archive-") as directory:
        binary = Path(directory, "runsc")
        try:
            found = _fetch(f"{ARCHIVE}/{version}/{os.uname().machine}/runsc", binary, attempt)
        except (OSError, urllib.error.URLError) as error:
            raise HostUnsupported(f"not reached ({getattr(error, 'reason', error)})") from error
        if found != checksum:
            raise HostUnsupported(f"the SHA-512 of {version} is {found}, and not the one that was given")
        binary.chmod(0o755)
        return binary.rename(attempt.tools / "runsc-archive")


def _go() -> str | None:
    return find("go") or find("/usr/local/go/bin/go")


def _from_source(attempt: Attempt) -> Path | None:
    built = attempt.tools / f"runsc-{PINNED}"
    if built.is_file():
        return built
    go = _go()
    if go is None:
        return None
    usual_s = BUILD_CORE_S / len(os.sched_getaffinity(0))
    attempt.step.doing("building", usual_s=usual_s, most_s=attempt.left_s)
    with tempfile.TemporaryDirectory(dir=attempt.tools, prefix=".build-") as directory:
        env = attempt.env
        home = env.get("HOME", directory)
        go_env = {"GOPATH": f"{home}/go", **env, "HOME": home, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(MODULE / name, Path(directory, name))
        program = Path(directory, "runsc")
        # Only gVisor's own build system names its builds; without this one would call itself VERSION_MISSING.
        flags = f"-ldflags=-s -w -X gvisor.dev/gvisor/runsc/version.version={PINNED}"
        # SAFETY: read-only, what go.sum lacks or contradicts is refused, whatever the proxy and the environment say.
        argv = [go, "build", "-C", directory, "-mod=readonly", "-buildvcs=false", "-trimpath", flags]
        argv += ["-o", str(program), "gvisor.dev/gvisor/runsc"]
        attempt.step.run(argv, timeout_s=attempt.left_s, env=go_env)
        return program.rename(built)


def _from_package(attempt: Attempt) -> Path | None:
    if os.geteuid() != 0 or find("apt-get") is None:
        return None
    attempt.step.doing("installing the distribution's runsc", most_s=attempt.left_s)

    def is_enough(version: str) -> bool:
        return version_date(version) >= OLDEST

    install_backported("runsc", is_enough=is_enough, step=attempt.step, env=attempt.env, timeout_s=attempt.left_s)
    return _from_path(attempt)


ORIGINS: tuple[tuple[str, Origin], ...] = (
    ("found on PATH", _from_path),
    ("gVisor's release archive", _from_archive),
    ("built from source", _from_source),
    ("the distribution's package", _from_package),
)


def will_be_built() -> bool:
    """Whether a build is to be expected, as far as one can know without trying anything."""
    return find("runsc") is None and _go() is not None


def _judge(path: Path) -> tuple[str, str]:
    """Its version, and why it cannot be used (empty when it can)."""
    version = _version(path)
    if version_date(version) < OLDEST:
        return version, f"{version} is older than {OLDEST}"
    return version, probe(path)


def _try(name: str, origin: Origin, attempt: Attempt) -> Runsc | str:
    """The program from one origin, or why there is none."""
    if not attempt.left_s:
        return f"{name}: not tried"
    try:
        path = origin(attempt)
        if path is None:
            return f"{name}: not available"
        version, trouble = _judge(path)
    except (HostUnsupported, OSError) as error:
        return f"{name}: {error}"
    if trouble:
        return f"{name}: {path}: {trouble}"
    return Runsc(path=str(path), version=version, origin=name, stamp=_stamp(path))


def acquire(
    tools: Path, step: Step, *, env: Mapping[str, str], timeout_s: float = TIMEOUT_S, release: str = ""
) -> Runsc:
    """The recorded choice, or a new one. Raises: HostUnsupported, with what each origin answered."""
    if chosen := recorded(tools):
        step.end(f"{chosen.version}, {chosen.origin}")
        return chosen
    tools.mkdir(parents=True, exist_ok=True)
    for leftover in (*tools.glob(".build-*"), *tools.glob(".archive-*")):
        shutil.rmtree(leftover, ignore_errors=True)
    attempt = Attempt(tools=tools, step=step, env=env, end=time.monotonic() + timeout_s, release=release)
    troubles: list[str] = []
    for name, origin in ORIGINS:
        outcome = _try(name, origin, attempt)
        if isinstance(outcome, Runsc):
            _record(tools, outcome)
            step.end(f"{outcome.version}, {outcome.origin}")
            return outcome
        troubles.append(outcome)
    if not attempt.left_s:
        troubles.append(
            f"its {duration(timeout_s)} were over; what was compiled is kept: to give it more time, set "
            "K8E_SANDBOX_GVISOR_TIMEOUT=1h and run `k8e doctor --fix`"
        )
        step.say(troubles[-1])
    raise HostUnsupported("gVisor could not be had:\n  " + "\n  ".join(troubles))
