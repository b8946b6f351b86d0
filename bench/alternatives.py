"""The same work by the bare runtimes and the bare host: what a user would have without us."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.memory import pss_bytes, tree
from bench.series import Probe, timed

__all__ = ["BareRuntime", "bare_python", "gvisor", "python_path", "runc"]

_TIMEOUT_S = 60.0
_SLEEP = ["/usr/bin/sleep", "3600"]


@dataclass(frozen=True, slots=True)
class BareRuntime:
    """An OCI runtime called by hand, with the host's own programs as root file system."""

    name: str
    command: tuple[str, ...]
    state: Path

    @contextlib.contextmanager
    def lives(self) -> Iterator[Probe]:
        """A whole life: create, start `true`, delete."""
        with _bundle(["/usr/bin/true"]) as bundle:
            yield timed(lambda: self._call("run", "--bundle", str(bundle), _fresh()))

    @contextlib.contextmanager
    def commands(self) -> Iterator[Probe]:
        """`true` in a container that already runs."""
        with self._running() as name:
            yield timed(lambda: self._call("exec", name, "/usr/bin/true"))

    def megabytes_per_s(self, total_bytes: int) -> float:
        """How quickly a program's output comes out through the runtime's own pipe."""
        argv = ["/usr/bin/head", "-c", str(total_bytes), "/dev/zero"]
        with self._running(device="zero") as name:
            began = time.perf_counter()
            with subprocess.Popen([*self.command, "exec", name, *argv], stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                while process.stdout.read(256 * 1024):
                    pass
            return total_bytes / (time.perf_counter() - began) / 1e6

    def idle_bytes(self) -> int:
        """Proportional memory of everything that a sleeping container keeps alive."""
        with self._running() as name:
            state = json.loads(subprocess.check_output([*self.command, "state", name], timeout=_TIMEOUT_S))
            return pss_bytes(tree([state["pid"]], name=name))

    def clear(self) -> None:
        """Remove whatever an interruption left."""
        listing = subprocess.run(
            [*self.command, "list", "-q"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        for name in listing.stdout.split():
            subprocess.run([*self.command, "delete", "--force", name], capture_output=True, check=False)
        # runsc keeps an empty network namespace mounted in its root.
        for mounted in self.state.glob("*netns*"):
            subprocess.run(["umount", str(mounted)], capture_output=True, check=False)
        shutil.rmtree(self.state, ignore_errors=True)

    def _call(self, *arguments: str) -> None:
        subprocess.run(
            [*self.command, *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )

    @contextlib.contextmanager
    def _running(self, *, device: str = "") -> Iterator[str]:
        name = _fresh()
        with _bundle(_SLEEP, device=device) as bundle:
            self._call("run", "--detach", "--bundle", str(bundle), name)
            try:
                yield name
            finally:
                self._call("delete", "--force", name)


def gvisor(runsc: Path, state: Path) -> BareRuntime:
    flags = ("--root", str(state), "--ignore-cgroups", "--network=none", "--platform=systrap")
    return BareRuntime("runsc", (str(runsc), *flags), state)


def runc(path: Path, state: Path) -> BareRuntime:
    return BareRuntime("runc", (str(path), "--root", str(state)), state)


def python_path() -> str:
    """The interpreter that a user of this host would get, never the benchmark's own environment."""
    return shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or "python3"


def bare_python() -> Probe:
    """`python3 -c "print(1)"` on the host itself, without any isolation, until its output and end are here."""
    argv = [python_path(), "-c", "print(1)"]
    return timed(lambda: subprocess.run(argv, check=True, capture_output=True))


def _fresh() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


@contextlib.contextmanager
def _bundle(argv: list[str], *, device: str = "") -> Iterator[Path]:
    bundle = Path(tempfile.mkdtemp(prefix="k8e-bench-bundle-"))
    rootfs = bundle / "rootfs"
    for directory in ("usr", "proc", "dev", "tmp"):
        (rootfs / directory).mkdir(parents=True)
    for link in ("bin", "lib", "lib64", "sbin"):
        if Path("/", link).is_symlink():
            (rootfs / link).symlink_to(f"usr/{link}")
    (bundle / "config.json").write_text(json.dumps(_spec(argv, device)))
    try:
        yield bundle
    finally:
        shutil.rmtree(bundle)


def _spec(argv: list[str], device: str) -> dict[str, object]:
    mounts: list[dict[str, object]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},
    ]
    if device:
        place = f"/dev/{device}"
        mounts.append({"destination": place, "type": "bind", "source": place, "options": ["bind"]})
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": argv,
            "env": [f"PATH={os.defpath}"],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]},
    }
