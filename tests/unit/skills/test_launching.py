"""The words that an agent is given start this very program, from anywhere and with next to nothing around it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from k8e import __version__
from k8e.errors import HostUnsupported
from k8e.skills import launching
from k8e.skills.entry import Command
from k8e.skills.launching import command, fault, own, ways

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(sys.executable).with_name("k8e")
SYSTEM = "/usr/bin:/bin"


def starts(words: tuple[str, ...], **environ: str) -> bool:
    done = subprocess.run([*words, "--version"], cwd="/", env=environ, capture_output=True, text=True, check=False)
    return done.stdout == f"k8e {__version__}\n"


def argv(started_as: str, home: Path, environ: dict[str, str]) -> tuple[str, ...]:
    return command(started_as, home, environ).argv


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_name_alone_where_everybody_finds_this_program(tmp_path: Path) -> None:
    path = f"{SCRIPT.parent}:{SYSTEM}"
    assert argv(str(SCRIPT), tmp_path, {"PATH": path}) == ("k8e",)
    assert starts(("k8e",), PATH=path)


def test_a_link_on_the_path_is_this_program_too(tmp_path: Path) -> None:
    (tmp_path / "k8e").symlink_to(SCRIPT)
    assert argv(str(SCRIPT), tmp_path, {"PATH": f"{tmp_path}:{SYSTEM}"}) == ("k8e",)


def test_the_whole_path_where_nobody_finds_it(tmp_path: Path) -> None:
    words = argv(str(SCRIPT), tmp_path, {"PATH": SYSTEM})
    assert words == (str(SCRIPT),)
    assert starts(words)


def test_another_program_of_the_same_name_is_not_meant(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "k8e", "echo k8e version v1.30")
    assert argv(str(SCRIPT), tmp_path, {"PATH": f"{tmp_path}/bin:{SYSTEM}"}) == (str(SCRIPT),)


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_environment_that_is_active_only_here_is_named_by_its_path(tmp_path: Path, variable: str) -> None:
    environ = {"PATH": f"{SCRIPT.parent}:{SYSTEM}", variable: str(SCRIPT.parents[1])}
    assert argv(str(SCRIPT), tmp_path, environ) == (str(SCRIPT),)


def test_a_relative_start_is_written_as_an_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPT.parent)
    assert argv("./k8e", tmp_path, {"PATH": SYSTEM}) == (str(SCRIPT),)
    assert argv("./k8e-sandbox", tmp_path, {"PATH": SYSTEM}) == (str(SCRIPT),)


def test_a_module_is_started_by_the_script_beside_its_python(tmp_path: Path) -> None:
    assert argv("k8e", tmp_path, {"PATH": SYSTEM}) == (str(SCRIPT),)


def test_a_checkout_is_started_by_its_launcher() -> None:
    assert next(own("-c")) == ROOT / "k8e"
    assert next(own("/x/k8e")) == Path("/x/k8e")


def test_the_last_resort_is_python_itself(tmp_path: Path) -> None:
    *_, last = ways("k8e", {"PATH": SYSTEM})
    assert fault(last, tmp_path, {}) == ""
    assert starts(last.argv)


def test_what_does_not_start_is_not_written_down(tmp_path: Path) -> None:
    broken = program(tmp_path / "k8e", "echo it is broken >&2; exit 3")
    assert fault(Command((str(broken),)), tmp_path, {}) == "it is broken"
    assert fault(Command((str(program(tmp_path / "silent" / "k8e", "exit 3")),)), tmp_path, {}) == "exit code 3"
    assert "No such file" in fault(Command((str(tmp_path / "nothing"),)), tmp_path, {})
    assert argv(str(broken), tmp_path, {"PATH": SYSTEM}) == (str(SCRIPT),)


def test_where_nothing_starts_it_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = program(tmp_path / "k8e", "echo it is broken >&2; exit 3")
    monkeypatch.setattr(launching, "ways", lambda *_: [Command((str(broken),))])
    with pytest.raises(HostUnsupported, match="it is broken"):
        argv(str(broken), tmp_path, {})


def test_the_callers_directory_and_environment_do_not_help(tmp_path: Path) -> None:
    needy = program(tmp_path / "k8e", '[ -n "$SECRET" ] && [ "$PWD" != / ] && echo "k8e ' + __version__ + '"')
    assert fault(Command((str(needy),)), tmp_path, {**os.environ, "SECRET": "x"}) == "exit code 1"
    honest = program(tmp_path / "other" / "k8e", f'[ "$PWD" = / ] && echo "k8e {__version__}"')
    assert fault(Command((str(honest),)), tmp_path, {}) == ""


def test_what_a_launcher_was_told_goes_along_and_nothing_else(tmp_path: Path) -> None:
    needy = program(tmp_path / "k8e", f'[ "$K8E_HOME" = /there ] && [ -z "$OTHER" ] && echo "k8e {__version__}"')
    environ = {"PATH": SYSTEM, "K8E_HOME": "/there", "OTHER": "x"}
    assert command(str(needy), tmp_path, environ) == Command((str(needy),), {"K8E_HOME": "/there"})
    assert command(str(SCRIPT), tmp_path, environ) == Command((str(SCRIPT),)), "the script has no use for it"
    on_path = environ | {"PATH": f"{tmp_path}:{SYSTEM}"}
    assert command(str(needy), tmp_path, on_path) == Command(("k8e",), {"K8E_HOME": "/there"})
