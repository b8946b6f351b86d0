"""Installing packages by name, and nothing but by name: no option, path, address or shell can come in that way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from k8e.errors import InvalidSpec
from k8e.model import Argv, Command

__all__ = ["pip_install"]

_MOST: Final = 64
_LONGEST: Final = 512
_TIMEOUT_S: Final = 600.0
_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION: Final = r"(?:===?|~=|!=|<=?|>=?)\s*[A-Za-z0-9][A-Za-z0-9.+!*_-]*"
_REQUIREMENT: Final = re.compile(
    rf"{_NAME}(?:\[{_NAME}(?:\s*,\s*{_NAME})*\])?(?:\s*{_VERSION}(?:\s*,\s*{_VERSION})*)?", re.ASCII
)


def pip_install(packages: Sequence[str]) -> Command:
    """The command that installs them into the session's own environment. Raises: InvalidSpec."""
    if not packages:
        raise InvalidSpec("name at least one package", field="packages")
    if len(packages) > _MOST:
        raise InvalidSpec(f"more than {_MOST} packages", field="packages")
    for package in packages:
        if len(package) > _LONGEST or not _REQUIREMENT.fullmatch(package):
            raise InvalidSpec(
                f"{package[:100]!r} is no package: use a name, with [extras] and versions (>=1.2,<2) at most; anything "
                "else with a command, `pip install …`",
                field="packages",
            )
    what = Argv(("python3", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--", *packages))
    return Command(what=what, timeout_s=_TIMEOUT_S)
