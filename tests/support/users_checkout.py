"""What a user has who cloned the project and did what the documents say: the launcher on PATH, the SDK in an environment.

Both are made once for a whole run, by the documents' own lines, in a copy of the files that git would have brought.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.shared_builds import built_once

__all__ = ["INSTALLED_BY", "UsersCheckout", "shell_blocks", "users_checkout", "users_environ"]

ROOT = Path(__file__).resolve().parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INSTALLED_BY = "pip install ."


@dataclass(frozen=True, slots=True)
class UsersCheckout:
    root: Path

    @property
    def python(self) -> Path:
        """The interpreter of the environment that README.md makes."""
        return self.root / ".venv" / "bin" / "python"


def shell_blocks(document: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)


def _copy(target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _build(target: Path) -> None:
    _copy(target)
    environ = {**_environ(target.parent), "K8E_DATA_DIR": str(target / "nowhere")}
    (install,) = [
        block for block in shell_blocks((target / "README.md").read_text(encoding="utf-8")) if INSTALLED_BY in block
    ]
    subprocess.run(["bash", "-ec", install], cwd=target, env=environ, check=True, stdin=subprocess.DEVNULL)
    # Any command that starts no server; the launcher installs what it needs.
    started = subprocess.run(["./k8e", "sandbox", "status"], cwd=target, env=environ, check=False)
    assert started.returncode == 2


def _environ(home: Path) -> dict[str, str]:
    """A plain user's, and what the operator's pip needs.

    Its cache, too, and nothing is compiled before it is used: fetching and compiling everything takes its time.
    """
    cache = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")
    known = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    return {"PATH": PATH, "HOME": str(home), "LANG": "C.UTF-8", **known, "PIP_CACHE_DIR": cache, "PIP_NO_COMPILE": "1"}


@pytest.fixture(scope="session")
def users_checkout(tmp_path_factory: pytest.TempPathFactory) -> UsersCheckout:
    return UsersCheckout(built_once(tmp_path_factory, "checkout", _build, is_movable=False))


@pytest.fixture
def users_environ(environ: dict[str, str], users_checkout: UsersCheckout, tmp_path: Path) -> dict[str, str]:
    """With the line of docs/install.md: `k8e` is the checkout's."""
    (line,) = [
        block
        for block in shell_blocks((ROOT / "docs" / "install.md").read_text(encoding="utf-8"))
        if block.startswith("PATH=")
    ]
    shown = subprocess.run(
        ["bash", "-ec", f'{line}printf %s "$PATH"'],
        cwd=users_checkout.root,
        env=_environ(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    return {**_environ(tmp_path), **environ, "PATH": shown.stdout}
