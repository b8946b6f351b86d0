"""A small repository of Debian packages, made by `dpkg-deb` and written down by hand."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

__all__ = ["publish"]

_SCRIPTS = frozenset({"preinst", "postinst", "prerm", "postrm", "triggers"})


def publish(directory: Path, packages: Mapping[str, Mapping[str, str]], *, depends: Mapping[str, str]) -> None:
    """Write packages of one version, by name: their files, and their scripts by the names that dpkg knows."""
    directory.mkdir()
    index = "".join(_publish(directory, name, files, depends.get(name, "")) for name, files in packages.items())
    packed = gzip.compress(index.encode(), mtime=0)
    (directory / "Packages").write_text(index, encoding="ascii")
    (directory / "Packages.gz").write_bytes(packed)
    sums = "".join(
        f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n"
        for name, content in (("Packages", index.encode()), ("Packages.gz", packed))
    )
    release = f"Origin: test\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{sums}"
    (directory / "Release").write_text(release, encoding="ascii")


def _publish(directory: Path, name: str, files: Mapping[str, str], depends: str) -> str:
    tree = directory / f"{name}.tree"
    control = f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: test <test@example.org>\n"
    control += (f"Depends: {depends}\n" if depends else "") + "Description: a package of a test\n"
    for place, text in {"DEBIAN/control": control, **files}.items():
        path = tree / (f"DEBIAN/{place}" if place in _SCRIPTS else place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
        path.chmod(0o755 if text.startswith("#!") else 0o644)
    package = directory / f"{name}.deb"
    build = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(package)]
    subprocess.run(build, check=True, capture_output=True)
    content = package.read_bytes()
    return f"{control}Filename: ./{name}.deb\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n\n"
