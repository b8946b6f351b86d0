"""A sandbox's root file system on the host: an overlay of its image's layers over a disk of its own, whose size is the quota."""

from __future__ import annotations

from pathlib import Path

from k8e.substrate.local.disks import Disks
from k8e.substrate.local.host import disk, mount
from k8e.substrate.local.idmaps import IdMaps
from k8e.substrate.local.layout import SandboxPaths
from k8e.substrate.local.plan import Image
from k8e.substrate.local.runtimes.driver import Blueprint, LocalSandbox

__all__ = ["OverlayRoots", "make_directories"]


def make_directories(paths: SandboxPaths) -> None:
    """Where its mounts go."""
    for path in (paths.disk, paths.view, paths.rootfs, paths.layers, paths.workspace, paths.live):
        path.mkdir()


class OverlayRoots:
    """Blocking, safe from several threads."""

    def __init__(self, disks: Disks, idmaps: IdMaps) -> None:
        self._disks = disks
        self._idmaps = idmaps

    def make_disk(self, sandbox: LocalSandbox, blueprint: Blueprint) -> None:
        paths = sandbox.paths
        self._disks.make_sandbox_disk(paths.image, blueprint.disk_bytes)
        disk.mount_image(paths.image, paths.disk, is_new=True)
        if blueprint.resolver:
            _name_resolver(paths.disk / "upper" / "etc", blueprint.resolver)

    def mount(self, sandbox: LocalSandbox, image: Image) -> None:
        """The root itself, and beside it the places where a workspace can be mounted at claim."""
        paths, shift = sandbox.paths, self._idmaps.descriptor(sandbox.block)
        self.mount_shifted(sandbox, paths.disk, paths.view)
        _mount_layers(paths, paths.rootfs, image.layers, shift, upper="upper", work="work")
        mount.bind(paths.view / "workspace", paths.workspace)
        mount.bind(paths.live, paths.live)
        for shared in (paths.workspace, paths.live):
            mount.make_shared(shared)

    def mount_usr(self, sandbox: LocalSandbox, image: Image) -> None:
        """What is written to it lies on the sandbox's disk, so the quota holds and the host's /usr stays as it is."""
        paths = sandbox.paths
        paths.usr.mkdir()
        for name in ("usr", "usr-work"):
            (paths.disk / name).mkdir()
        shift = self._idmaps.descriptor(sandbox.block)
        _mount_layers(paths, paths.usr, image.usr, shift, upper="usr", work="usr-work")

    def mount_shifted(self, sandbox: LocalSandbox, source: Path, target: Path) -> None:
        """Owners of `source`, as stored, become the sandbox's own ids."""
        with mount.idmapped(source, self._idmaps.descriptor(sandbox.block)) as tree:
            mount.move_to(tree, target)


def _mount_layers(
    paths: SandboxPaths, target: Path, layers: tuple[Path, ...], shift: int, *, upper: str, work: str
) -> None:
    """Stack read-only layers, topmost first, under two directories of the sandbox's disk."""
    lower = []
    for number, layer in enumerate(layers):
        place = paths.layers / f"{upper}-{number}"
        place.mkdir()
        with mount.idmapped(layer, shift, attributes=("ro", "nosuid", "nodev")) as tree:
            mount.move_to(tree, place)
        lower.append(place)
    mount.overlay(target, lower=tuple(lower), upper=paths.view / upper, work=paths.view / work)
    for place in lower:
        # The overlay holds its layers itself; fewer mounts make every later namespace cheaper.
        mount.unmount(place)


def _name_resolver(etc: Path, resolver: str) -> None:
    """On the sandbox's own disk, above its image: no mount, and no link of the image's is followed."""
    etc.mkdir()
    (etc / "resolv.conf").write_text(f"nameserver {resolver}\noptions timeout:2 attempts:2\n", encoding="ascii")
