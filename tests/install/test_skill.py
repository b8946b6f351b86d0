"""What users download brings the skill along, and what it writes into an agent's config starts that very download."""

from __future__ import annotations

import json
import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from k8e import __version__
from k8e.skills import SKILL
from k8e.skills.folder import contents
from tests.install.conftest import Dist
from tests.install.test_dist import Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _installed(home: Path) -> dict[str, bytes]:
    target = home / ".claude" / "skills" / SKILL
    paths = [path for path in target.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in paths}


def _starts(home: Path) -> tuple[str, str]:
    """The command in the config, and what it says of itself from elsewhere with nothing but its own entry."""
    entry = json.loads((home / ".claude.json").read_text())["mcpServers"]["k8e-sandbox"]
    assert entry["args"] == ["sandbox-mcp"]
    environ = {"PATH": os.defpath, "HOME": str(home), **entry.get("env", {})}
    done = subprocess.run(
        [entry["command"], "--version"], cwd="/", env=environ, capture_output=True, text=True, check=True
    )
    return entry["command"], done.stdout


def test_the_wheel_and_the_one_file_program_hold_the_skill(dist: Dist) -> None:
    wanted = {f"k8e/skills/{SKILL}/{name}": data for name, data in contents().items()}
    for archive, prefix in ((zipfile.ZipFile(dist.wheel), ""), (zipfile.ZipFile(dist.program), "site-packages/")):
        with archive:
            assert {name: archive.read(prefix + name) for name in wanted} == wanted


def test_the_one_file_program_installs_itself_by_where_it_lies(dist: Dist, tmp_path: Path) -> None:
    place = Place(dist, tmp_path)
    done = place.run("sandbox-install-skill", "claude")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _installed(tmp_path) == dict(contents())
    assert _starts(tmp_path) == (str(place.program), f"k8e {__version__}\n")


def test_an_installation_by_pip_needs_only_the_client_and_installs_its_script(dist: Dist, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(dist.wheel)], check=True)
    script = environment / "bin" / "k8e"
    done = subprocess.run(
        [str(script), "sandbox-install-skill", "claude"],
        env={"PATH": os.defpath, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert _installed(tmp_path) == dict(contents())
    assert _starts(tmp_path) == (str(script), f"k8e {__version__}\n")
