"""`python packaging/onefile.py DIST`: the one-file program from the wheel in DIST, for the Python that runs this.

- A shell script in front of a zip: the script finds Python and, once unpacked, costs a start one `exec`.
- Code is compiled beforehand and never compared with its source, so the first start only unpacks.
- The same wheel and the same packages give the same file, byte for byte.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import py_compile
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["build", "main"]

HERE = Path(__file__).resolve().parent
SERIES = "{}.{}".format(*sys.version_info)
EPOCH = (1980, 1, 1, 0, 0, 0)
LARGEST = 100 * 10**6
UNWANTED = frozenset({"bin", "test", "tests"})
UNWANTED_FILES = frozenset({".c", ".h", ".pxd", ".pyi", ".pyx"})
UNWANTED_RECORDS = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Who installed it from where: it would tell of the machine that built this."""


def install(wheel: Path, target: Path) -> None:
    """The wheel with all that its server needs."""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*argv, "--target", str(target), f"{wheel}[server,otel]"], check=True)


def compiled(target: Path) -> None:
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(target, quiet=2, stripdir=str(target), invalidation_mode=mode, workers=0)


def wanted(target: Path) -> Iterator[Path]:
    """What goes in, in an order that is always the same."""
    for path in sorted(target.rglob("*")):
        inside = path.relative_to(target)
        is_unwanted = UNWANTED & set(inside.parts[:-1]) or path.suffix in UNWANTED_FILES
        is_record = path.parent.suffix == ".dist-info" and path.name in UNWANTED_RECORDS
        if path.is_file() and not is_unwanted and not is_record:
            yield path


def digest(target: Path, files: list[Path]) -> str:
    seen = hashlib.sha256(SERIES.encode())
    for source in (HERE / "onefile.sh", HERE / "onefile_main.py"):
        seen.update(source.read_bytes())
    for path in files:
        content = path.read_bytes()
        seen.update(f"{path.relative_to(target)}\0{len(content)}\0".encode() + content)
    return seen.hexdigest()[:16]


def filled(template: str, build_id: str) -> str:
    text = (HERE / template).read_text(encoding="utf-8")
    for name, value in (("BUILD", build_id), ("SERIES", SERIES), ("PLATFORM", sysconfig.get_platform())):
        text = text.replace(f"@{name}@", value)
    return text


def entry(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o100644 << 16
    return info


def write(program: Path, build_id: str, target: Path, files: list[Path]) -> None:
    program.write_text(filled("onefile.sh", build_id), encoding="utf-8")
    with zipfile.ZipFile(program, "a", compresslevel=9) as archive:
        archive.writestr(entry("__main__.py"), filled("onefile_main.py", build_id))
        for path in files:
            archive.writestr(entry(f"site-packages/{path.relative_to(target)}"), path.read_bytes())
    program.chmod(0o755)


def build(wheel: Path, program: Path) -> None:
    """Raises: CalledProcessError when pip fails; SystemExit when the result is too large."""
    with tempfile.TemporaryDirectory(prefix="k8e-onefile-") as directory:
        target = Path(directory)
        install(wheel, target)
        compiled(target)
        files = list(wanted(target))
        unfinished = program.with_suffix(".new")
        write(unfinished, digest(target, files), target, files)
    if (size := unfinished.stat().st_size) > LARGEST:
        raise SystemExit(f"{unfinished} has {size} bytes, more than {LARGEST}")
    unfinished.replace(program)
    print(f"{program}: {size / 1e6:.1f} MB, for Python {SERIES} on {sysconfig.get_platform()}")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("dist", type=Path)
    dist: Path = parser.parse_args().dist
    wheels = sorted(dist.glob("k8e-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        raise SystemExit(f"no wheel in {dist}; `make dist` builds it first")
    build(wheels[-1], dist / "k8e")


if __name__ == "__main__":
    main()
