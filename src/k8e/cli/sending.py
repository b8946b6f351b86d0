"""From here into a session: files, directories and links as they are, with their modes."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from k8e.cli.output import say
from k8e.client.errors import NotFound, SandboxError
from k8e.client.light.calls import Calls, Request, encoded, only
from k8e.visible import shown

__all__ = ["Upload"]

PIECE = 256 * 1024
PERMISSIONS = 0o777
WORKSPACE = "/workspace"
ARGUMENTS = 200
"""How many names one helper command inside gets."""


class Upload:
    def __init__(self, calls: Calls, session_id: str, add: Callable[[int, int], None]) -> None:
        self._calls = calls
        self._session_id = session_id
        self._add = add
        self._modes: dict[int, list[str]] = {}
        """Of directories: set at the end, so that one without write permission can be filled."""

    def copy(self, source: Path, target: str) -> None:
        if not source.exists():
            raise NotFound(f"{source} does not exist here")
        if target.endswith("/") or (self._is_directory(target) and source.is_file()):
            target = posixpath.join(target, source.name)
        if source.is_file():
            self._file(source, target)
        else:
            for path, there in self._walked(source, target):
                self._entry(path, there)
        for mode, paths in self._modes.items():
            self._run(["chmod", f"{mode:o}", "--"], paths)

    def _walked(self, source: Path, target: str) -> Iterator[tuple[Path, str]]:
        for directory, names, files in os.walk(source):
            here = Path(directory)
            below = here.relative_to(source).as_posix()
            there = target if below == "." else posixpath.join(target, below)
            yield here, there
            links = [name for name in names if (here / name).is_symlink()]
            for name in (*links, *files):
                yield here / name, posixpath.join(there, name)

    def _entry(self, path: Path, there: str) -> None:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            self._run(["ln", "-sfn", "--", str(path.readlink())], [there])
        elif stat.S_ISDIR(mode):
            self._calls.unary("MakeDirectory", {"session_id": self._session_id, "path_bytes": encoded(there)})
            self._modes.setdefault(mode & PERMISSIONS, []).append(there)
        elif stat.S_ISREG(mode):
            self._file(path, there)
        else:
            say(f"left out, because it is no file: {shown(str(path))}")

    def _file(self, path: Path, there: str) -> None:
        perm = path.stat().st_mode & PERMISSIONS
        opened = {"session_id": self._session_id, "path_bytes": encoded(there), "perm": perm}

        def requests() -> Iterator[Request]:
            yield {"open": opened}
            with path.open("rb") as file:
                while piece := file.read(PIECE):
                    yield {"data": encoded(piece)}
                    self._add(0, len(piece))

        only(self._calls.stream("WriteStream", requests()))
        self._add(1, 0)

    def _run(self, argv: list[str], paths: list[str]) -> None:
        """A command inside, for what has no call of its own."""
        for start in range(0, len(paths), ARGUMENTS):
            words = [*argv, *(typed(path) for path in paths[start : start + ARGUMENTS])]
            request = {"session_id": self._session_id, "argv": [encoded(word) for word in words]}
            done = self._calls.unary("Exec", request)
            if done.number("exit_code"):
                raise SandboxError(f"{argv[0]} failed inside: {shown(done.text('stderr').strip())}")

    def _is_directory(self, target: str) -> bool:
        try:
            found = self._calls.unary("StatFile", {"session_id": self._session_id, "path_bytes": encoded(target)})
        except NotFound:
            return False
        return found.text("type") == "directory"


def typed(path: str) -> str:
    """A path as a command inside takes it: it starts in /workspace, and no name is a flag."""
    below = posixpath.relpath(path, WORKSPACE) if path.startswith(WORKSPACE + "/") else path
    return below if below.startswith("/") else f"./{below}"
