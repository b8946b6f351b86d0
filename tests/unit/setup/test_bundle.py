"""The agent's bundle: complete, content-addressed, and of no use to anybody half-made."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from k8e.errors import HostUnsupported
from k8e.setup import bundle
from k8e.setup.bundle import INSIDE, Bundle, build, digest, find_interpreter
from tests.support.leaks import Lend

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for chroot")


@pytest.fixture(scope="module")
def built(lend: Lend) -> Bundle:
    return build(lend("bundles"))


def test_the_same_inputs_give_the_same_bundle_without_building(built: Bundle) -> None:
    before = built.path.stat().st_ino
    again = build(built.path.parent)
    assert again == built
    assert again.path.stat().st_ino == before


def test_only_finished_bundles_are_there(built: Bundle) -> None:
    others = {entry.name.partition("-")[0] for entry in built.path.parent.iterdir()} - {built.path.name}
    assert others == {"python"}


def test_bundles_share_one_interpreter_on_the_disk(built: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_MAIN", bundle._MAIN + "\n# another\n")
    other = build(built.path.parent)
    try:
        assert other.path != built.path
        assert (other.path / "python/bin/python3").samefile(built.path / "python/bin/python3")
    finally:
        shutil.rmtree(other.path)


def test_another_agent_gives_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = find_interpreter()
    before = digest(interpreter)
    monkeypatch.setattr(bundle, "_MAIN", bundle._MAIN + "\n# changed\n")
    assert digest(interpreter) != before


def test_another_interpreter_gives_another_name() -> None:
    interpreter = find_interpreter()
    assert digest(replace(interpreter, version=(3, 99, 0))) != digest(interpreter)


def test_everything_is_readable_for_the_sandboxs_nobody(built: Bundle) -> None:
    wanted = {path: 0o005 if path.is_dir() else 0o004 for path in (built.path, *built.path.rglob("*"))}
    assert [path for path, bits in wanted.items() if path.stat().st_mode & bits != bits] == []


def test_the_agents_zip_has_the_agent_and_the_wire_but_no_engine(built: Bundle) -> None:
    listing = subprocess.run(
        ["python3", "-m", "zipfile", "-l", str(built.path / "agent.pyz")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "k8e/wire/frames.pyc" in listing
    assert "k8e/agent/__init__.pyc" in listing
    assert "aio" not in listing
    assert "engine" not in listing


def _run_inside(built: Bundle, root: Path, *arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run in a root with nothing but the bundle: what it does not bring, it does not have."""
    inside = root / INSIDE.lstrip("/")
    inside.mkdir()
    script = 'mount --bind "$1" "$2" && shift 2 && exec chroot "$@"'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(built.path), str(inside), str(root), *arguments]
    return subprocess.run(argv, env=dict(env), capture_output=True, text=True, check=False, timeout=60)


@needs_root
def test_it_runs_with_nothing_else_around_it(built: Bundle, tmp_path: Path) -> None:
    program = "import sys, json, select, socket, ctypes, pty, zlib, k8e.wire.frames as f; print(sys.prefix, f.__file__)"
    code = f"import sys; sys.path.insert(0, '{INSIDE}/agent.pyz'); {program}"
    ended = _run_inside(built, tmp_path, *built.argv[:4], "-S", "-s", "-B", "-c", code, env=built.env)
    assert (ended.stdout, ended.stderr) == (f"{INSIDE}/python {INSIDE}/agent.pyz/k8e/wire/frames.pyc\n", "")


@needs_root
def test_the_agent_starts_from_one_file(built: Bundle, tmp_path: Path) -> None:
    """Only what the interpreter needs before its main program is looked for among many files."""
    argv = built.argv[: built.argv.index("--socket")]
    loading = _run_inside(built, tmp_path, *argv, env={**built.env, "PYTHONVERBOSE": "1"}).stderr
    assert "usage: agent --socket PATH" in loading, "the control: it ran"
    assert "import 'k8e.agent.desk'" in loading
    assert [line for line in loading.splitlines() if "code object from" in line and "encodings" not in line] == []


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_COMPILE", "raise SystemExit(1)")
    with pytest.raises(HostUnsupported, match="cannot build"):
        build(tmp_path)
    assert list(tmp_path.iterdir()) == []
