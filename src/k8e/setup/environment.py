"""The private Python environment of a checkout, made by the launcher's first start.

Run by the system's Python before anything is installed, so it needs the standard library alone. The environment is built
in place, because the programs of a Python environment hold its path. The stamp is written last: an interrupted start is
simply run again.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

from k8e.errors import HostUnsupported
from k8e.setup.early import Space
from k8e.setup.programs import finish
from k8e.setup.report import Reporter, Steps
from k8e.setup.turns import alone

__all__ = ["is_fresh", "make", "space"]

BYTES = 3 * 10**8
PROBE_TIMEOUT_S = 60.0
VENV_TIMEOUT_S = 300.0
VENV_USUAL_S = 5.0
PIP_TIMEOUT_S = 1800.0
PIP_USUAL_S = 60.0


def space(env: Path) -> Space:
    """What making it will write."""
    return Space(path=env, size=BYTES, moved_by="K8E_HOME")


def is_fresh(env: Path, root: Path) -> bool:
    """Whether it was made for this very checkout, after the last change of what must be installed."""
    stamp = env / ".stamp"
    try:
        is_newer = stamp.stat().st_mtime_ns > (root / "pyproject.toml").stat().st_mtime_ns
        return is_newer and stamp.read_text(encoding="utf-8") == f"{root}\n"
    except OSError:
        return False


def make(env: Path, root: Path, python: str, report: Reporter) -> None:
    """Make or renew it, once however many ask at the same time. Raises: HostUnsupported."""
    shared = Path(f"{env}.json")
    with ExitStack() as stack:
        try:
            env.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(Path(f"{env}.lock"), shared, report))
        except OSError as error:
            raise HostUnsupported(
                f"cannot write {env.parent}: {error.strerror}; set K8E_HOME to a directory that you own"
            ) from error
        steps = stack.enter_context(Steps(report, log=Path(f"{env}.log"), shared=shared))
        if not is_fresh(env, root):
            _install(env, root, python, steps)


def _install(env: Path, root: Path, python: str, steps: Steps) -> None:
    step = steps.step("Python environment")
    if not _has_pip(env):
        step.doing("making it", usual_s=VENV_USUAL_S)
        shutil.rmtree(env, ignore_errors=True)
        step.run([python, "-I", "-m", "venv", str(env)], timeout_s=VENV_TIMEOUT_S)
    step.doing("installing packages", usual_s=PIP_USUAL_S)
    pip = [str(env / "bin" / "python"), "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    step.run([*pip, "--progress-bar", "off", "--editable", f"{root}[server]"], timeout_s=PIP_TIMEOUT_S)
    (env / ".stamp").write_text(f"{root}\n", encoding="utf-8")
    step.end(f"ready in {env}")


def _has_pip(env: Path) -> bool:
    argv = [str(env / "bin" / "python"), "-I", "-m", "pip", "--version"]
    try:
        return finish(argv, timeout_s=PROBE_TIMEOUT_S).code == 0
    except OSError:
        return False
