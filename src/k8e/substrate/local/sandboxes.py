"""The sandboxes of one data directory: each is built by its runtime's driver, found again by name, and removed.

Around what a driver makes lie a directory, a block of ids and a record, whatever the runtime. Removal needs no memory of a
sandbox, and no driver that still knows it: everything is found by name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from k8e.errors import SandboxFailed
from k8e.model import Runtime, SandboxId, WorkspaceId
from k8e.substrate.local import record
from k8e.substrate.local.blocks import Blocks, base_id
from k8e.substrate.local.host import cgroup, loop, mount
from k8e.substrate.local.host.process import Process
from k8e.substrate.local.layout import Layout, SandboxPaths
from k8e.substrate.local.record import Record
from k8e.substrate.local.runtimes.driver import Blueprint, Driver, LocalSandbox
from k8e.substrate.local.turns import Turns
from k8e.substrate.local.workspaces import Workspaces

__all__ = ["LocalSandboxes"]


class LocalSandboxes:
    """Blocking, safe from several threads: what builds and what removes one sandbox never does so at once."""

    def __init__(self, layout: Layout, workspaces: Workspaces, drivers: Iterable[Driver]) -> None:
        self._layout = layout
        self._workspaces = workspaces
        self._drivers = tuple(drivers)
        self._trees = cgroup.hierarchies()
        self._blocks = Blocks(layout.data_dir, {found.block for found in record.load_all(layout)})
        self._turns = Turns()

    def group(self, sandbox: SandboxId) -> cgroup.SandboxGroup:
        return cgroup.SandboxGroup(self._trees, sandbox, owner=str(self._layout.data_dir))

    def of(self, known: Record) -> LocalSandbox:
        return LocalSandbox(
            id=known.sandbox,
            paths=self._layout.sandbox(known.sandbox),
            group=self.group(known.sandbox),
            block=known.block,
            memory_bytes=known.memory_bytes,
        )

    def record(self, sandbox: SandboxId) -> Record | None:
        """None where it does not exist. Raises: OSError when that cannot be seen now."""
        return record.load(self._layout.sandbox(sandbox))

    def known(self, sandbox: SandboxId) -> Record:
        """Raises: SandboxFailed, also when it cannot be seen now."""
        try:
            known = self.record(sandbox)
        except OSError as error:
            raise SandboxFailed("look up sandbox", error) from error
        if known is None:
            raise SandboxFailed("look up sandbox", f"{sandbox} does not exist")
        return known

    def use(self, known: Record, workspace: WorkspaceId) -> None:
        """From now on it is known to have this workspace. The caller holds its turn."""
        record.save(self._layout.sandbox(known.sandbox), known.using(workspace))

    def turn(self, sandbox: SandboxId) -> AbstractContextManager[None]:
        """Held by whoever builds, changes or removes it."""
        return self._turns.at(sandbox)

    # --- building --------------------------------------------------------------------------------------------------

    def build(self, sandbox: SandboxId, driver: Driver, blueprint: Blueprint, memory_bytes: int) -> Process:
        """Its init. What a failure leaves is for `remove`. Raises: SandboxFailed, OSError."""
        with self.turn(sandbox):
            known = self._begin(sandbox, driver.runtime, blueprint, memory_bytes)
            init = driver.build(self.of(known), blueprint)
            record.save(self._layout.sandbox(sandbox), known.booted(init))
            return init

    def _begin(self, sandbox: SandboxId, runtime: Runtime, blueprint: Blueprint, memory_bytes: int) -> Record:
        """Its directory and its record: from here on its ids are found again, and given back with its removal."""
        paths, block = self._layout.sandbox(sandbox), self._blocks.take()
        known = Record(
            sandbox=sandbox, runtime=runtime, block=block, memory_bytes=memory_bytes, image=blueprint.image.digest
        )
        try:
            _make_directory(paths.root, block)
            record.save(paths, known)
        except BaseException:
            self._blocks.give_back(block)
            raise
        return known

    # --- finding ---------------------------------------------------------------------------------------------------

    def found(self) -> frozenset[SandboxId]:
        """By directory, mount, loop device, cgroup, use of a workspace, and what a driver names: each is a trace."""
        home = self._layout.sandboxes
        # The directory may itself be a mount, and then hold what its file system puts into every root.
        names = {place.relative_to(home).parts[0] for place in self._places(home) if place != home}
        names |= cgroup.leftover_groups(self._trees, str(self._layout.data_dir))
        names |= {path.name for path in self._layout.workspaces.glob("*/users/*")}
        for driver in self._drivers:
            names |= driver.leftovers()
        return frozenset(SandboxId(name) for name in names - {"lost+found"})

    def _places(self, home: Path) -> Iterator[Path]:
        yield from home.iterdir()
        yield from (entry.target for entry in mount.mounts_under(home))
        backing = map(Path, loop.backing_files().values())
        yield from (path for path in backing if path.is_relative_to(home))

    # --- removing --------------------------------------------------------------------------------------------------

    def remove(self, sandbox: SandboxId) -> None:
        """End it and remove every trace, in whatever state it is; a second removal waits and finds nothing to do.

        Raises: SandboxFailed.
        """
        failures: list[Exception] = []
        with self.turn(sandbox):
            try:
                self._end(sandbox, failures)
                self._workspaces.release(sandbox)
                self._forget(sandbox)
            except OSError as error:
                failures.append(error)
        if failures:
            cause = failures[0] if len(failures) == 1 else ExceptionGroup("destroy", failures)
            raise SandboxFailed("destroy", "; ".join(map(repr, failures))) from cause

    def _end(self, sandbox: SandboxId, failures: list[Exception]) -> None:
        """Its processes first: they hold everything else. The drivers that failed keep nobody from the rest."""
        group, root = self.group(sandbox), self._layout.sandbox(sandbox).root
        group.kill()
        for driver in self._drivers:
            try:
                driver.remove(sandbox)
            except Exception as error:  # noqa: BLE001 - whatever it is, the sandbox may be another driver's
                failures.append(error)
        mount.unmount_under(root)
        loop.release(root)
        group.remove()

    def _forget(self, sandbox: SandboxId) -> None:
        """Its files, and then its ids, which only its record tells; where that cannot be read now, both are for the next try."""
        known = self.record(sandbox)
        _remove_files(self._layout.sandbox(sandbox))
        if known is not None:
            self._blocks.give_back(known.block)

    def has_processes(self, sandbox: SandboxId) -> bool:
        """Whether any process of it is left, in whatever state it is."""
        return bool(self.group(sandbox).processes())


def _make_directory(root: Path, block: int) -> None:
    """Traversable for the sandbox's own root and nobody else: mountinfo tells every local user the path."""
    root.mkdir(mode=0o700)
    os.chown(root, 0, base_id(block))
    root.chmod(0o710)


def _remove_files(paths: SandboxPaths) -> None:
    # SAFETY: no mount is left below, so this cannot reach into a sandbox's disk or the host's /usr.
    if mount.mounts_under(paths.root):
        raise OSError(f"mounts remain under {paths.root}")
    if paths.root.is_dir() and not paths.root.is_symlink():
        shutil.rmtree(paths.root)
    else:
        paths.root.unlink(missing_ok=True)
