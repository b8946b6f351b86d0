"""Root file systems for images, made of this host's own programs: a shell, and a Python where a Debian image has it."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

__all__ = ["fill_python", "fill_shell", "packed"]

PROGRAMS = ("/bin/sh", "/bin/cat", "/bin/ls", "/bin/mknod")


def _linked(*binaries: Path) -> Iterable[Path]:
    argv = ["ldd", *map(str, binaries)]
    listing = subprocess.run(argv, check=False, capture_output=True, text=True).stdout
    return {Path(found) for found in re.findall(r"(/\S+) \(0x", listing)}


def _copy(files: Iterable[Path], target: Path) -> None:
    """Each to the place it has on this host, without the links it may lie behind."""
    for file in files:
        place = target / file.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.resolve(), place)


def fill_shell(target: Path) -> None:
    programs = [Path(name) for name in PROGRAMS]
    _copy([*programs, *_linked(*programs)], target)
    (target / "etc").mkdir()
    (target / "etc/marker").write_text("from the image\n", encoding="ascii")


def fill_python(target: Path) -> None:
    """A shell and the host's own Python, where a Debian image has it."""
    fill_shell(target)
    binary = Path("/usr/bin/python3").resolve()
    library = Path("/usr/lib") / binary.name
    unwanted = shutil.ignore_patterns("__pycache__", "test", "idlelib", "ensurepip", "pydoc_data", "config-*")
    shutil.copytree(library, target / library.relative_to("/"), ignore=unwanted, symlinks=True)
    _copy([binary, *_linked(binary, *library.glob("lib-dynload/*.so"))], target)
    (target / "usr/bin/python3").symlink_to(binary.name)


def packed(root: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(root, arcname=".")
    return buffer.getvalue()
