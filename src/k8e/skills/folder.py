"""The skill's folder: what is in it, and how a copy of it is made, kept up to date and taken away.

A copy carries a list of what we put there (`.k8e-installed.json`). A file that is no longer as we left it is the
user's: it is neither replaced nor removed unless that is asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from k8e.skills import SKILL
from k8e.skills.files import Original, alone, make_directory, original, remove, replace

__all__ = ["LIST", "Copy", "Outcome", "contents", "install", "plan", "stage", "uninstall"]

LIST = ".k8e-installed.json"
SOURCE = Path(__file__).parent / SKILL
READABLE = 0o644


def contents() -> Mapping[str, bytes]:
    """Every file of the skill by its path in the folder."""
    paths = sorted(path for path in SOURCE.rglob("*") if path.is_file())
    return {path.relative_to(SOURCE).as_posix(): path.read_bytes() for path in paths}


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What is known about a folder in an agent's place."""

    files: Mapping[str, str]
    """Digests of the files as we left them."""
    made: tuple[str, ...] = ()
    """Directories that were made for it, deepest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was done, or with `is_dry` would be."""

    action: str
    """`added`, `updated`, `unchanged`, `removed`, `absent` or `kept`."""
    changed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Files with the user's own changes in them."""
    detail: str = ""


@dataclass(slots=True)
class Plan:
    writes: dict[str, bytes] = field(default_factory=dict)
    removes: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def install(target: Path, wanted: Mapping[str, bytes], *, force: bool, is_dry: bool, made: Iterable[Path]) -> Outcome:
    """A copy of the skill at `target`. `made` are directories that were made for this agent before."""
    if is_dry:
        return _outcome(target, _steps(target, wanted, force=force))
    is_new = not target.exists()
    if is_new:
        made = [*make_directory(target)[1:], *made]
    with alone(target):
        steps = _steps(target, wanted, force=force)
        if steps is not None:
            known = _known(target)
            _apply(target, steps, wanted, Copy(files=known.files, made=(*map(str, made), *known.made)))
    return _outcome(target, steps, is_new=is_new)


def _steps(target: Path, wanted: Mapping[str, bytes], *, force: bool) -> Plan | None:
    """None where the folder is somebody else's."""
    known = _known(target)
    present = _present(target, {*wanted, *known.files})
    is_foreign = not known.files and any(present.get(name, data) != data for name, data in wanted.items())
    return None if is_foreign and not force else plan(present, wanted, known.files, force=force)


def _outcome(target: Path, steps: Plan | None, *, is_new: bool | None = None) -> Outcome:
    if steps is None:
        return Outcome(action="kept", detail="this folder is not ours; --force replaces what is in it")
    is_new = not target.exists() if is_new is None else is_new
    changed = (*steps.writes, *steps.removes)
    return Outcome(
        action="added" if is_new else "updated" if changed else "unchanged",
        changed=changed,
        kept=tuple(steps.kept),
        detail="your own changes stay; --force replaces them" if steps.kept else "",
    )


def plan(present: Mapping[str, bytes], wanted: Mapping[str, bytes], ours: Mapping[str, str], *, force: bool) -> Plan:
    """What to write, remove and leave alone. Pure."""
    steps = Plan()
    for name, data in wanted.items():
        old = present.get(name)
        if old == data:
            continue
        if old is None or force or ours.get(name) == _digest(old):
            steps.writes[name] = data
        else:
            steps.kept.append(name)
    for name in sorted(ours.keys() - wanted.keys()):
        if name in present and (force or ours[name] == _digest(present[name])):
            steps.removes.append(name)
    return steps


def uninstall(target: Path, *, force: bool, is_dry: bool, near: Path) -> Outcome:
    """Take away what we put there; what the user changed or added stays. `near` is the config that came along."""
    if not target.is_dir() or not (known := _known(target)).files:
        return Outcome(action="absent", detail="what is there is not ours" if target.exists() else "")
    present = _present(target, known.files)
    gone = [name for name, data in present.items() if force or known.files[name] == _digest(data)]
    kept = tuple(name for name in present if name not in gone)
    if not is_dry:
        with alone(target):
            for name in (*gone, LIST):
                remove(target / name)
        around = {*target.parents, *near.parents}
        _tidy(target, gone, [Path(each) for each in known.made if Path(each) in around])
    detail = "your own changes stay; --force removes them, too" if kept else ""
    return Outcome(action="removed", changed=tuple(gone), kept=kept, detail=detail)


def stage(directory: Path) -> bool:
    """The skill below the server's own directory, for everybody to read; says whether it had to be written."""
    target, wanted = directory / SKILL, contents()
    known = _known(target)
    steps = plan(_present(target, {*wanted, *known.files}), wanted, known.files, force=True)
    if not (steps.writes or steps.removes):
        return False
    make_directory(target)
    _apply(target, steps, wanted, known)
    for path in (directory, target, *(each for each in target.rglob("*") if each.is_dir())):
        path.chmod(0o755)
    return True


def _apply(target: Path, steps: Plan, wanted: Mapping[str, bytes], known: Copy) -> None:
    ours = {name: _digest(data) for name, data in wanted.items() if name not in steps.kept}
    listed = {"files": ours, "made": list(dict.fromkeys(known.made))}
    text = (json.dumps(listed, indent=2, sort_keys=True) + "\n").encode()
    # What refers to the others comes after them, so that it never names a file that is not there yet.
    for name, data in [*sorted(steps.writes.items(), key=lambda each: each[0] == "SKILL.md"), (LIST, text)]:
        path = target / name
        before = original(path)
        if before.data != data:
            make_directory(path.parent)
            replace(Original(path=path, data=before.data, mode=READABLE, owner=before.owner), data)
    for name in steps.removes:
        remove(target / name)


def _tidy(target: Path, gone: Iterable[str], made: Iterable[Path]) -> None:
    """Remove directories that are empty now; one that is not, is somebody's."""
    inner = {target, *(target / parent for name in gone for parent in PurePosixPath(name).parents)}
    for directory in [*sorted(inner, reverse=True), *sorted(made, reverse=True)]:
        with contextlib.suppress(OSError):
            directory.rmdir()


def _present(target: Path, names: Iterable[str]) -> dict[str, bytes]:
    found = {name: original(target / name).data for name in names}
    return {name: data for name, data in found.items() if data is not None}


def _known(target: Path) -> Copy:
    """From the list in the folder; a list that says anything strange counts for nothing."""
    try:
        found = json.loads((target / LIST).read_bytes())
        files = {str(name): str(digest) for name, digest in found["files"].items() if _is_inside(str(name))}
        return Copy(files=files, made=tuple(str(each) for each in found.get("made", ())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Copy(files={})


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
