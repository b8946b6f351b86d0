"""tsx for TypeScript: installed once, complete or not at all, and no trouble for a host without Node."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8e.errors import HostUnsupported
from k8e.setup import node
from k8e.setup.report import Step

NPM = """#!/bin/sh
[ "$1 $2" = "install --prefix" ] || exit 9
mkdir -p "$3/node_modules/.bin" && echo '#!/bin/sh' >"$3/node_modules/.bin/tsx"
"""


def _provide(monkeypatch: pytest.MonkeyPatch, directory: Path, **programs: str) -> None:
    for name, text in programs.items():
        (directory / name).write_text(text, encoding="utf-8")
        (directory / name).chmod(0o755)
    monkeypatch.setattr(node, "find", lambda name: str(directory / name) if name in programs else None)


def test_it_is_installed_once_and_found_below_bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    _provide(monkeypatch, tmp_path, npm=NPM, node="")
    home = node.install(tmp_path / "tools", step, env={"PATH": "/usr/bin:/bin"})
    assert home is not None
    assert (home / "bin" / "tsx").read_text(encoding="utf-8") == "#!/bin/sh\n"
    _provide(monkeypatch, tmp_path, npm="#!/bin/sh\nexit 1\n", node="")
    assert node.install(tmp_path / "tools", step, env={}) == home


def test_a_failed_install_leaves_nothing_that_looks_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    _provide(monkeypatch, tmp_path, npm="#!/bin/sh\necho no network; exit 1\n", node="")
    with pytest.raises(HostUnsupported, match="no network"):
        node.install(tmp_path / "tools", step, env={"PATH": "/usr/bin:/bin"})
    assert node.installed(tmp_path / "tools") is None


def test_a_host_without_node_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    _provide(monkeypatch, tmp_path)
    assert node.install(tmp_path / "tools", step, env={}) is None
