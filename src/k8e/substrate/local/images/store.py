"""Images by name, each prepared once: `<data>/images/<digest>/` appears by rename, so what is there is complete.

Nothing here asks a registry: what comes from one is pulled before (`pulls`), and then found by its digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from k8e.apt.configuration import AptConfiguration
from k8e.errors import InvalidSpec
from k8e.substrate.local.images import archive, host, layer, packages
from k8e.substrate.local.images.pulled import PulledImages
from k8e.substrate.local.layout import Layout
from k8e.substrate.local.plan import SKELETON, TOOLS_AT, Bind, Image
from k8e.substrate.local.unfinished import UNFINISHED

__all__ = ["HOST", "ImageStore", "digest_in"]

_FORMAT = "1"
"""Part of every digest; raise it when preparing an image changes."""
HOST = "host"
_VARIABLES = ".env.json"
_PYTHON_PLACES = ("usr/bin", "usr/local/bin", "bin")

Layer = Callable[[Image, Path], None]
"""Builds the virtual environment of an image into a new layer."""


class ImageStore:
    """Blocking; safe from several threads."""

    def __init__(
        self, layout: Layout, roots: tuple[Path, ...], *, node_tools: Path, apt: AptConfiguration | None = None
    ) -> None:
        """With `apt`, packages can be installed in sandboxes of the host image."""
        self._layout = layout
        self._apt = apt
        self._package_layers: tuple[Path, Path] | None = None
        self._tools = node_tools
        self._roots = tuple(root.resolve() for root in roots)
        self._lock = threading.Lock()
        self._preparing: dict[str, threading.Lock] = {}
        self.pulled = PulledImages(layout.images)

    def is_here(self, name: str) -> bool:
        """Whether it is the host's, or one that the operator has put here; any other name is a registry's."""
        return name == HOST or self._locate(name) is not None

    def base(self, name: str) -> Image:
        """The image without a virtual environment. Raises: InvalidSpec."""
        skeleton = self._once("skeleton", _fill_skeleton)
        if name == HOST:
            return self._host(skeleton)
        if path := self._locate(name):
            return self._given(path, skeleton)
        return self._pulled(name, skeleton)

    def ready(self, name: str, recipe: str, build_venv: Layer) -> Image:
        """The image with its virtual environment on top, where it has a Python; `recipe` tells versions of it apart.

        Raises: InvalidSpec.
        """
        base = self.base(name)
        if not has_python(base):
            return base
        if name == HOST:
            recipe, build_venv = recipe + host.APT_NOTICE + host.LOGIN_PATH, _explaining_apt(build_venv)
        built = self._once(
            f"venv-{base.digest}.{_digest(recipe)[:8]}", lambda target: self._build(build_venv, base, target)
        )
        return replace(base, layers=(built, *base.layers))

    def _build(self, build_venv: Layer, base: Image, target: Path) -> None:
        build_venv(base, target)
        self.pulled.grow(base.digest, _size(target))

    def _host(self, skeleton: Path) -> Image:
        digest = _digest(HOST, *_stamps(Path("/usr/bin/python3"), Path("/etc/ld.so.cache"), Path("/etc/os-release")))
        own = self._once(digest, host.fill)
        extra = (Bind(source=self._tools, target=TOOLS_AT),) if self._tools.is_dir() else ()
        if self._apt is None:
            return Image(digest=digest, layers=(own, skeleton), binds=(*host.binds(), *extra))
        root, usr = self._with_packages(self._apt)
        return Image(digest=digest, layers=(root, own, skeleton), binds=extra, usr=(usr, packages.USR))

    def _with_packages(self, apt: AptConfiguration) -> tuple[Path, Path]:
        """Once while the server runs: each change of the host's packages would leave another copy of their state."""
        if self._package_layers is None:
            closed = packages.closed()
            state = _stamps(packages.state_file())
            self._package_layers = (
                self._once(
                    f"apt-{_digest(packages.FORMAT, repr(apt), *state)}",
                    lambda target: packages.fill_root(target, apt),
                ),
                self._once(
                    f"usr-{_digest(packages.FORMAT, *closed)}", lambda target: packages.fill_usr(target, closed)
                ),
            )
        return self._package_layers

    def _given(self, path: Path, skeleton: Path) -> Image:
        digest = _digest(str(path), *_stamps(path))
        if path.is_dir() and not (path / "oci-layout").exists():
            return Image(digest=digest, layers=(path, skeleton))
        unpacked = self._once(digest, lambda target: self._unpack(path, target, digest))
        variables = self._layout.images / f"{digest}{_VARIABLES}"
        env = json.loads(variables.read_text(encoding="utf-8")) if variables.exists() else {}
        return Image(digest=digest, layers=(unpacked, skeleton), env=env)

    def _unpack(self, path: Path, target: Path, digest: str) -> None:
        variables = archive.unpack(path, target)
        (self._layout.images / f"{digest}{_VARIABLES}").write_text(json.dumps(variables), encoding="utf-8")

    def _pulled(self, name: str, skeleton: Path) -> Image:
        image = self.pulled.get(digest_in(name))
        if image is None:
            places = ", ".join(str(root) for root in self._roots)
            raise InvalidSpec(
                f"no image {name!r} in {places}; put a rootfs directory, OCI layout or tar there", field="image"
            )
        return Image(digest=image.directory, layers=(self.pulled.path(image), skeleton), env=image.env)

    def _locate(self, name: str) -> Path | None:
        """An image lies in a directory that the operator has named: a caller must not turn `/` into its root."""
        for root in self._roots:
            path = (root / name).resolve()
            if path != root and path.is_relative_to(root) and path.exists():
                return path
        return None

    def _once(self, name: str, fill: Callable[[Path], None]) -> Path:
        """One at a time for each name: an image that takes long holds up nobody else."""
        final = self._layout.images / name
        if final.is_dir():
            return final
        with self._lock:
            preparing = self._preparing.setdefault(name, threading.Lock())
        with preparing:
            return final if final.is_dir() else self._made(name, final, fill)

    def _made(self, name: str, final: Path, fill: Callable[[Path], None]) -> Path:
        partial = self._layout.images / f"{UNFINISHED}{name}.{secrets.token_hex(4)}"
        partial.mkdir(parents=True)
        try:
            fill(partial)
            partial.chmod(0o755)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return final


def has_python(image: Image) -> bool:
    """Whether a `python3` lies where PATH looks; links are not followed out of the image."""
    roots = [*image.layers, *(bind.source.parent for bind in image.binds if bind.target == "/usr")]
    if any(os.path.lexists(usr / "bin/python3") for usr in image.usr):
        return True
    return any(os.path.lexists(layer.resolve(root, place) / "python3") for root in roots for place in _PYTHON_PLACES)


def _explaining_apt(build_venv: Layer) -> Layer:
    def build(image: Image, target: Path) -> None:
        build_venv(image, target)
        if (target / "opt/venv/bin").is_dir():
            host.explain_apt(target)

    return build


def digest_in(name: str) -> str:
    """Of an image by its exact name; empty for one that the server has of its own."""
    return name.partition("@")[2]


def _size(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*"))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join((_FORMAT, *parts)).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _stamps(*paths: Path) -> list[str]:
    """Which version of each file this is, as far as a cache must know."""
    stats = [path.stat() for path in paths if path.exists()]
    return [f"{stat.st_dev}:{stat.st_ino}:{stat.st_mtime_ns}:{stat.st_size}" for stat in stats]


def _fill_skeleton(target: Path) -> None:
    for name in SKELETON:
        (target / name).mkdir(parents=True)
    (target / "tmp").chmod(0o1777)
    (target / "root").chmod(0o700)
