"""Which words start this very program from anywhere: an agent has neither our directory nor our environment.

`k8e` alone where everybody who looks for it finds this program; else its whole path. What a launcher is told about where
it keeps itself goes along. Each way is tried before it is written down.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from k8e import __version__
from k8e.errors import HostUnsupported
from k8e.skills.entry import SETTINGS, Command

__all__ = ["command"]

NAME = "k8e"
PATIENCE_S = 300.0
"""A launcher in a checkout may first have to make its environment."""


def command(started_as: str, home: Path, environ: Mapping[str, str]) -> Command:
    """How an agent starts us. Raises: HostUnsupported with what was tried."""
    tried: list[str] = []
    for way in ways(started_as, environ):
        if not (trouble := fault(way, home, environ)):
            return way
        tried.append(f"{' '.join(way.argv)} ({trouble})")
    raise HostUnsupported(f"nothing starts this program from elsewhere; tried: {'; '.join(tried)}")


def ways(started_as: str, environ: Mapping[str, str]) -> Iterator[Command]:
    """From the best to the last resort."""
    script = Path(sys.executable).with_name(NAME)
    programs = [path for path in own(started_as) if os.access(path, os.X_OK)]
    settings = {name: environ[name] for name in SETTINGS if environ.get(name)}
    if found := on_path(environ):
        for program in programs:
            if is_same(found, program):
                yield Command((NAME,), {} if program == script else settings)
    for program in programs:
        yield Command((str(program),), {} if program == script else settings)
    yield Command((sys.executable, "-I", "-m", "k8e"))


def own(started_as: str) -> Iterator[Path]:
    """Files that start this program: what was started, the launcher of a checkout, the environment's script."""
    if os.sep in started_as:
        # The other names of the program know fewer commands.
        path = Path(os.path.abspath(started_as))  # noqa: PTH100 - links stay: a version may change behind one
        yield path if path.name == NAME else path.with_name(NAME)
    checkout = Path(__file__).resolve().parents[3]
    launcher = [checkout / NAME] if (checkout / "pyproject.toml").is_file() else []
    script = [Path(sys.executable).with_name(NAME)]
    # A launcher starts Python with a program as text; it keeps its environment fresh, which the script there does not.
    yield from [*launcher, *script] if started_as == "-c" else [*script, *launcher]


def on_path(environ: Mapping[str, str]) -> Path | None:
    """Where everybody finds it: not in an environment that is active only here, nor below a relative directory."""
    found = shutil.which(NAME, path=environ.get("PATH"))
    if found is None or not Path(found).is_absolute():
        return None
    active = [environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    return None if any(Path(found).is_relative_to(each) for each in active) else Path(found)


def is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def fault(way: Command, home: Path, environ: Mapping[str, str]) -> str:
    """Why it does not start from the root directory with next to nothing in the environment; empty when it does."""
    path = environ.get("PATH", os.defpath) if way.argv == (NAME,) else os.defpath
    bare = {"PATH": path, "HOME": str(home), **way.env}
    if os.name == "nt":
        bare |= {name: value for name, value in environ.items() if name.upper() in {"SYSTEMROOT", "PATHEXT"}}
    try:
        done = subprocess.run(
            [*way.argv, "--version"],
            cwd=Path(home.anchor),
            env=bare,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except OSError as error:
        return error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return f"no answer within {PATIENCE_S:.0f} s"
    if done.stdout.decode(errors="replace").split() == [NAME, __version__]:
        return ""
    said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"exit code {done.returncode}"
