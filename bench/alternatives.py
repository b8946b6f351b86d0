"""The same work by the bare runtimes and the bare host: what a user would have without us."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.memory import pss_bytes, tree
from bench.series import Series, measure

__all__ = ["BareRuntime", "bare_python", "gvisor", "runc"]

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class BareRuntime:
    """An OCI runtime called by hand, with the host's own programs as root file system."""

    name: str
    command: tuple[str, ...]

    def run(self, *, n: int) -> Series:
        """A whole life: create, start `true`, delete."""
        with self._bundle(["/usr/bin/true"]) as bundle:
            return measure(lambda: self._call("run", "--bundle", str(bundle), _fresh()), n=n)

    def exec(self, *, n: int) -> Series:
        """`true` in a container that already runs."""
        with self._bundle(["/usr/bin/sleep", "600"]) as bundle, self._running(bundle) as name:
            return measure(lambda: self._call("exec", name, "/usr/bin/true"), n=n)

    def idle_bytes(self) -> int:
        """Proportional memory of everything that a sleeping container keeps alive."""
        with self._bundle(["/usr/bin/sleep", "600"]) as bundle, self._running(bundle) as name:
            state = json.loads(subprocess.check_output([*self.command, "state", name], timeout=_TIMEOUT_S))
            return pss_bytes(tree(state["pid"], container=name))

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
    def _running(self, bundle: Path) -> Iterator[str]:
        name = _fresh()
        self._call("run", "--detach", "--bundle", str(bundle), name)
        try:
            yield name
        finally:
            self._call("kill", name, "KILL")
            self._call("delete", "--force", name)

    @contextlib.contextmanager
    def _bundle(self, argv: list[str]) -> Iterator[Path]:
        bundle = Path(tempfile.mkdtemp(prefix="k8e-bench-"))
        rootfs = bundle / "rootfs"
        for directory in ("usr", "proc", "dev", "tmp"):
            (rootfs / directory).mkdir(parents=True)
        for link in ("bin", "lib", "lib64", "sbin"):
            if Path("/", link).is_symlink():
                (rootfs / link).symlink_to(f"usr/{link}")
        (bundle / "config.json").write_text(json.dumps(_spec(argv)))
        try:
            yield bundle
        finally:
            shutil.rmtree(bundle)


def gvisor(runsc: Path, state: Path) -> BareRuntime:
    flags = ("--root", str(state), "--ignore-cgroups", "--network=none", "--platform=systrap")
    return BareRuntime("runsc", (str(runsc), *flags))


def runc(path: Path, state: Path) -> BareRuntime:
    return BareRuntime("runc", (str(path), "--root", str(state)))


def bare_python(*, n: int) -> Series:
    """`python3 -c "print(1)"` on the host itself, without any isolation."""
    argv = [shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or "python3", "-c", "print(1)"]
    return measure(lambda: subprocess.run(argv, check=True, stdout=subprocess.DEVNULL), n=n)


def _fresh() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


def _spec(argv: list[str]) -> dict[str, object]:
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},
    ]
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
