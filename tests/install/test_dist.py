"""What `make dist` makes holds everything that it needs, and the one-file program brings it along."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.install.conftest import ROOT, Dist

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SERIES = "{}.{}".format(*sys.version_info)
_MODULES = "k8e.server, k8e.egress.__main__, k8e.cli.main, k8e.client, sandbox_client"

# A Python of another series: it runs nothing but says what it is.
_OTHER_PYTHON = """#!/bin/sh
case "$*" in -V) echo "Python 3.7.1" ;; *) exit 1 ;; esac
"""

_FOREIGN = f"""
import sys, {_MODULES}
home, library = sys.argv[1], sys.base_prefix
files = {{m.__name__: m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)}}
print([name for name, file in files.items() if not file.startswith((home, library)) or "dist-packages" in file])
"""


class Place:
    """A person's machine with nothing but Python: an empty home and the system's own PATH."""

    def __init__(self, dist: Dist, home: Path, program: str = "k8e") -> None:
        self.home = home
        self.program = home / "downloads" / program
        self.program.parent.mkdir()
        self.program.symlink_to(dist.program)

    def command(self, *words: str) -> tuple[list[str], dict[str, str]]:
        env = {
            "PATH": _PATH,
            "HOME": str(self.home),
            "K8E_HOME": str(self.home / "cache"),
            "K8E_PYTHON": sys.executable,
        }
        return [str(self.program), *words], env

    def run(self, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        argv, env = self.command(*words)
        return subprocess.run(argv, env=env | extra, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def place(dist: Dist, tmp_path: Path) -> Place:
    return Place(dist, tmp_path)


def test_the_wheel_and_the_source_archive_hold_every_file_of_the_package(dist: Dist) -> None:
    package = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "cache" not in str(path)
    }
    assert package <= set(zipfile.ZipFile(dist.wheel).namelist())
    with tarfile.open(dist.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in package} <= names
    assert {"install.sh", "packaging/onefile.sh", "proto/sandbox/v1/sandbox.proto", "README.md", "LICENSE"} <= names


def test_the_one_file_program_is_small_and_tells_nothing_of_its_builder(dist: Dist) -> None:
    assert dist.program.stat().st_size < 100 * 10**6
    archive = zipfile.ZipFile(dist.program)
    assert not [name for name in archive.namelist() if name.endswith(("direct_url.json", "/RECORD"))]
    code = archive.read("site-packages/k8e/cli/__pycache__/main.cpython-{}{}.pyc".format(*sys.version_info))
    assert b"k8e/cli/main.py" in code
    assert b"/k8e/cli/main.py" not in code


def test_the_first_start_unpacks_and_later_ones_only_run(place: Place) -> None:
    first, later = place.run("--version"), place.run("--version")
    assert first.returncode == later.returncode == 0
    assert "unpacking into" in first.stderr
    assert later.stderr == ""
    assert first.stdout == later.stdout


@pytest.mark.parametrize("name", ["k8e", "k8e-sandbox", "k8e-sandbox-cli"])
def test_it_is_known_by_the_name_it_is_called(dist: Dist, tmp_path: Path, name: str) -> None:
    assert Place(dist, tmp_path, name).run("--version").stdout.startswith(f"{name} ")


def test_nothing_comes_from_elsewhere_but_the_standard_library(place: Place) -> None:
    place.run("--version")
    [python] = place.home.glob("cache/*/bin/python")
    argv = [str(python), "-I", "-c", _FOREIGN, str(place.home / "cache")]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_four_first_starts_at_once_all_work(place: Place) -> None:
    argv, env = place.command("--version")
    starts = [
        subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    ended = [start.communicate(timeout=100) for start in starts]
    assert all(out.startswith("k8e ") for out, _ in ended), ended
    assert sum("unpacking" in err for _, err in ended) == 1


def test_an_interrupted_first_start_is_simply_run_again(place: Place) -> None:
    (place.home / "cache" / "new" / "lib").mkdir(parents=True)
    assert place.run("--version").returncode == 0
    assert not (place.home / "cache" / "new").exists()


def test_another_python_is_refused_in_words(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text(_OTHER_PYTHON)
    other.chmod(0o755)
    # Alone on the machine: what the script looks for by its full name is not there either.
    script = dist_script(place.program).replace("/usr/bin/python", str(tmp_path / "no" / "python"))
    (tmp_path / "k8e").write_bytes(script.encode("utf-8", "surrogateescape"))
    ended = subprocess.run(
        ["/bin/sh", str(tmp_path / "k8e"), "--version"],
        env={"PATH": str(other.parent), "K8E_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert f"built for Python {_SERIES}" in ended.stderr
    assert "Python 3.7.1" in ended.stderr
    assert f"install Python {_SERIES}" in ended.stderr


def dist_script(program: Path) -> str:
    """The lines in front of the zip."""
    head, line, _ = program.read_bytes().decode("utf-8", "surrogateescape").partition('"$0" "$@"\n')
    return head + line


def test_python_may_be_named_on_the_command_line(place: Place) -> None:
    _, env = place.command()
    argv = [sys.executable, str(place.program), "--version"]
    assert subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.startswith("k8e ")


def test_a_wrong_python_on_the_command_line_is_refused_in_words(tmp_path: Path) -> None:
    text = (ROOT / "packaging" / "onefile_main.py").read_text().replace("@SERIES@", "2.7").replace("@BUILD@", "x")
    with zipfile.ZipFile(tmp_path / "k8e", "w") as archive:
        archive.writestr("__main__.py", text)
    ended = subprocess.run([sys.executable, str(tmp_path / "k8e")], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "built for Python 2.7" in ended.stderr


def test_a_place_that_cannot_be_written_is_named(place: Place) -> None:
    (place.home / "file").touch()
    ended = place.run("--version", K8E_HOME=str(place.home / "file"))
    assert ended.returncode == 2
    assert "set K8E_HOME" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_somebody_elses_place_is_not_trusted(place: Place) -> None:
    place.run("--version")
    for path in (place.home / "cache", *place.home.glob("cache/*/stamp")):
        os.chown(path, 65534, 65534)
    ended = place.run("--version")
    assert ended.returncode == 2
    assert "belongs to somebody else" in ended.stderr
