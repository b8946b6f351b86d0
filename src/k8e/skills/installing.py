"""Our entry and the skill put into one agent's places, or taken out of them, and an account of it file by file."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from k8e.errors import Conflict, HostUnsupported, InvalidSpec, K8eError
from k8e.skills import ENTRY, SKILL, folder
from k8e.skills.agents import Agent, Place, Surroundings
from k8e.skills.configs import Config
from k8e.skills.entry import Entry, is_ours, is_same
from k8e.skills.files import Original, alone, back_up, make_directory, original, remove, replace
from k8e.skills.jsonc import Value

__all__ = ["Options", "Report", "install", "uninstall"]

SHOWN = 200
ATTEMPTS = 5
"""An agent that is at work writes its config now and then; one that always does will not stop for us."""
YOURS = f"the {ENTRY} that is there is your own; --force replaces it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    force: bool = False
    is_dry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One file or folder: what was done to it, or would be."""

    path: Path
    what: str
    """`entry` or `skill`."""
    action: str
    """`added`, `updated`, `unchanged`, `removed`, `absent` or `kept`."""
    detail: str = ""
    backup: Path | None = None
    diff: str = ""
    files: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    agent: str
    steps: tuple[Step, ...] = ()
    """What was done, also before something went wrong."""
    error: K8eError | None = None
    """InvalidSpec for a config that is broken, HostUnsupported for what cannot be read or written."""

    @property
    def is_done(self) -> bool:
        """Whether everything is as it was asked for."""
        return self.error is None and not any(step.action == "kept" for step in self.steps)


def install(
    agent: Agent, here: Surroundings, entry: Entry | None, skill: Mapping[str, bytes], options: Options
) -> Report:
    """Without an entry only the folder."""
    at = agent.place(here)
    made: list[Path] = []

    def steps() -> Iterator[Step]:
        if entry is not None:
            yield _attempted(lambda: _add(agent, at, entry, options, made))
        target = at.skills / SKILL
        yield _told(target, folder.install(target, skill, force=options.force, is_dry=options.is_dry, made=made))

    return _reported(agent, steps())


def uninstall(agent: Agent, here: Surroundings, options: Options) -> Report:
    at = agent.place(here)

    def steps() -> Iterator[Step]:
        yield _attempted(lambda: _take(agent, at, options))
        target = at.skills / SKILL
        done = folder.uninstall(target, force=options.force, is_dry=options.is_dry, near=at.config)
        yield _told(target, done)

    return _reported(agent, steps())


def _reported(agent: Agent, steps: Iterator[Step]) -> Report:
    done: list[Step] = []
    try:
        done.extend(steps)
    except K8eError as error:
        return Report(agent=agent.name, steps=tuple(done), error=error)
    except OSError as error:
        return Report(agent=agent.name, steps=tuple(done), error=HostUnsupported(str(error)))
    return Report(agent=agent.name, steps=tuple(done))


def _told(target: Path, done: folder.Outcome) -> Step:
    return Step(path=target, what="skill", action=done.action, detail=done.detail, files=done.changed, kept=done.kept)


def _attempted(work: Callable[[], Step]) -> Step:
    for _ in range(ATTEMPTS - 1):
        try:
            return work()
        except Conflict:
            continue
    return work()


def _add(agent: Agent, at: Place, entry: Entry, options: Options, made: list[Path]) -> Step:
    wanted = agent.written(entry)
    if not options.is_dry:
        made += make_directory(Original(path=at.config, data=None).real.parent)
    with alone(_nearest(at.config)):
        before = original(at.config)
        config = Config(str(at.config), before.data or b"", agent.format, at.path)
        found = config.found()
        if found is not None and is_same(found, wanted):
            return Step(path=at.config, what="entry", action="unchanged")
        if found is not None and not is_ours(found) and not options.force:
            return Step(path=at.config, what="entry", action="kept", detail=YOURS)
        data = config.with_entry(wanted)
        # A backup from before us says more than one of our own former words, and a file that is all ours needs none.
        formers = (original(before.backup).data, b"")
        is_kept = any(_is_addition(agent, at, former, found, before) for former in formers)
        return _changed(before, data, options, "added" if found is None else "updated", is_kept=is_kept)


def _take(agent: Agent, at: Place, options: Options) -> Step:
    if original(at.config).data is None:
        return Step(path=at.config, what="entry", action="absent")
    with alone(_nearest(at.config)):
        before = original(at.config)
        config = Config(str(at.config), before.data or b"", agent.format, at.path)
        found = config.found()
        if found is None:
            return Step(path=at.config, what="entry", action="absent")
        if not is_ours(found) and not options.force:
            return Step(path=at.config, what="entry", action="kept", detail=YOURS.replace("replaces", "removes"))
        kept = original(before.backup)
        for former in (kept.data, b""):
            # Nothing but our entry was changed since: then everything becomes as it was before, to the byte.
            if former is not None and _is_addition(agent, at, former, found, before):
                return _reverted(before, former, kept, options)
        return _changed(before, config.without_entry(), options, "removed")


def _is_addition(agent: Agent, at: Place, former: bytes | None, found: Value, before: Original) -> bool:
    """Whether the file is the former one with our entry put in, and nothing else."""
    if former is None or not isinstance(found, Mapping) or not is_ours(found):
        return False
    try:
        config = Config(str(at.config), former, agent.format, at.path)
        return config.found() is None and config.with_entry(dict(found)) == before.data
    except InvalidSpec:
        return False


def _reverted(before: Original, former: bytes, kept: Original, options: Options) -> Step:
    """Back to the bytes of before; a file that we made, and the backup that is no longer one, go."""
    is_made = former != kept.data and not before.path.is_symlink()
    if not options.is_dry:
        if is_made:
            remove(before.path)
        else:
            replace(before, former)
        if former == kept.data:
            remove(kept.path)
    diff = _diff(before.path, before.data, None if is_made else former)
    return Step(path=before.path, what="entry", action="removed", diff=diff)


def _changed(before: Original, data: bytes, options: Options, action: str, *, is_kept: bool = False) -> Step:
    backup = before.backup if is_kept and before.backup.exists() else None
    if not options.is_dry:
        backup = backup if is_kept else back_up(before)
        replace(before, data)
    return Step(
        path=before.path, what="entry", action=action, backup=backup, diff=_diff(before.path, before.data, data)
    )


def _nearest(config: Path) -> Path:
    """The directory that two of us meet at: the file's own, or where that will be."""
    directory = Original(path=config, data=None).real.parent
    while not directory.is_dir():
        directory = directory.parent
    return directory


def _diff(path: Path, before: bytes | None, after: bytes | None) -> str:
    old, new = ((data or b"").decode("utf-8", "replace").splitlines(keepends=True) for data in (before, after))
    names = ("/dev/null" if before is None else str(path), "/dev/null" if after is None else str(path))
    return "".join(_short(line) for line in difflib.unified_diff(old, new, *names))


def _short(line: str) -> str:
    """Some configs are one line of many pages."""
    text = line.rstrip("\r\n")
    middle = "" if len(text) <= 2 * SHOWN else f" … {len(text) - 2 * SHOWN} characters … "
    return (f"{text[:SHOWN]}{middle}{text[-SHOWN:]}" if middle else text) + "\n"
