"""The virtual environment of an image, built at its true path inside a sandbox of that image.

Nothing of an image is ever executed or trusted outside: the build is a sandbox like any other, with quota and limits, whose
disk is read when it is dead. Its name starts with `image-`, so a crashed build is found and removed.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from k8e.errors import SandboxFailed
from k8e.model import GIB, SandboxId
from k8e.substrate.local.host.process import Process, open_pidfd
from k8e.substrate.local.plan import Agent, Image
from k8e.substrate.local.runtimes.driver import Blueprint, Driver
from k8e.substrate.local.sandboxes import LocalSandboxes

__all__ = ["VenvBuilder", "check_size", "wait"]

_log = logging.getLogger(__name__)

_TIMEOUT_S = 300.0
_MEMORY_BYTES = GIB
_DISK_BYTES = GIB
_DONE = ".k8e-complete"
_WITHOUT = ".k8e-without"
_ERROR = ".k8e-error"
_ERROR_BYTES = 16 * 1024
_MAX_BYTES = 256 * 1024 * 1024
_MAX_ENTRIES = 50_000
_MAX_DEPTH = 64
"""A new environment has some 20 MB in 2,000 files; what an image makes of it is its own."""
_PYTHON = "python3"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# ensurepip is a package of its own on Debian, whose venv exits without it: then the environment comes without pip. A
# minimal Python has no venv either: then its sandboxes simply run that Python.
_PROGRAM = """
import json, os, py_compile, subprocess, sys, traceback
os.makedirs("/opt", exist_ok=True)

def build(files):
    try:
        import venv
    except ImportError:
        return open("/opt/.k8e-without", "w").close()
    try:
        venv.EnvBuilder(symlinks=True, with_pip=True).create("/opt/venv")
    except (subprocess.CalledProcessError, SystemExit):
        venv.EnvBuilder(symlinks=True, clear=True).create("/opt/venv")
    site = "/opt/venv/lib/python%d.%d/site-packages" % sys.version_info[:2]
    for name, text in files.items():
        path = os.path.join(site, name)
        with open(path, "w") as file:
            file.write(text.rstrip() + "\\n")
        if name.endswith(".py"):
            py_compile.compile(path, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    open("/opt/venv/.k8e-complete", "w").close()

try:
    build(json.loads(sys.argv[1]))
except BaseException:
    with open("/opt/.k8e-error", "w") as file:
        traceback.print_exc(file=file)
"""


class VenvBuilder:
    """Blocking."""

    def __init__(self, sandboxes: LocalSandboxes, site_files: Mapping[str, str]) -> None:
        self._sandboxes = sandboxes
        self._site_files = dict(site_files)

    @property
    def recipe(self) -> str:
        """Changes whenever the result would."""
        return json.dumps([_PROGRAM, self._site_files])

    def using(self, driver: Driver, *, is_required: bool) -> Callable[[Image, Path], None]:
        """A builder that isolates the build with `driver`, of the runtime that the image's user has chosen.

        A Python that does not even start is the image's own affair, unless `is_required`.
        """
        return lambda image, target: self._build(driver, image, target, is_required=is_required)

    def _build(self, driver: Driver, image: Image, target: Path, *, is_required: bool) -> None:
        sandbox = SandboxId(f"image-{secrets.token_hex(8)}")
        blueprint = Blueprint(image=image, agent=_program(self._site_files), disk_bytes=_DISK_BYTES)
        try:
            try:
                init = self._sandboxes.build(sandbox, driver, blueprint, _MEMORY_BYTES)
            except SandboxFailed as error:
                # Some runtimes load the program themselves, and name it in their complaint.
                if is_required or _PYTHON not in str(error):
                    raise
                _say_without(str(error))
                return
            wait(init)
            built = self._sandboxes.of(self._sandboxes.known(sandbox))
            _collect(driver.written(built), target, log=driver.last_words(built.paths), is_required=is_required)
        finally:
            self._sandboxes.remove(sandbox)


def _program(site_files: Mapping[str, str]) -> Agent:
    """What runs instead of the agent; it needs nothing of ours."""
    argv = (_PYTHON, "-c", _PROGRAM, json.dumps(site_files))
    env = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", "PIP_NO_CACHE_DIR": "1"}
    return Agent(bundle=None, argv=argv, env=env)


def wait(init: Process) -> None:
    """Until the build has ended. Raises: SandboxFailed when it takes too long."""
    descriptor = open_pidfd(init)
    if descriptor is None:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(_TIMEOUT_S * 1000):
            raise SandboxFailed("build virtual environment", f"not done within {_TIMEOUT_S:.0f} s")
    finally:
        os.close(descriptor)


def _collect(written: Path, target: Path, *, log: str, is_required: bool) -> None:
    source = written / "opt"
    # SAFETY: what is copied was written by the image. No link is followed, and lstat decides what is a directory.
    if not source.is_symlink() and (source / _WITHOUT).is_file():
        return
    if source.is_symlink() or (source / "venv").is_symlink() or not (source / "venv" / _DONE).is_file():
        why = "" if source.is_symlink() else _last_line(source / _ERROR)
        if not why and not is_required:
            _say_without(log)
            return
        raise SandboxFailed("build virtual environment", why or log or "python3 -m venv failed")
    check_size(source / "venv")
    (target / "opt").mkdir()
    shutil.copytree(source / "venv", target / "opt" / "venv", symlinks=True)
    (target / "opt" / "venv" / _DONE).unlink()


def _say_without(why: str) -> None:
    _log.warning("the Python of an image does not work; its sandboxes have no environment", extra={"reason": why})


def check_size(directory: Path) -> None:
    """As large as it gets when it is copied: holes are filled, and each name of a file has its content."""
    size = entries = 0
    pending = [directory]
    while pending:
        here = pending.pop()
        with os.scandir(here) as found:
            for entry in found:
                entries += 1
                if entry.is_dir(follow_symlinks=False):
                    pending.append(here / entry.name)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
        depth = len(here.relative_to(directory).parts)
        if size > _MAX_BYTES or entries > _MAX_ENTRIES or depth > _MAX_DEPTH:
            raise SandboxFailed(
                "build virtual environment",
                f"it has more than {_MAX_BYTES} bytes, {_MAX_ENTRIES} files or {_MAX_DEPTH} directories in one another",
            )


def _last_line(path: Path) -> str:
    """Of what the program said; whatever else the image has put there is not followed, and not read to its end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        lines = file.read(_ERROR_BYTES).decode("utf-8", "replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")
