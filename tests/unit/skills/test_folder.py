"""A copy of the skill is made, kept up to date and taken away, and what the user did to it stays."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from k8e.errors import HostUnsupported
from k8e.skills import SKILL
from k8e.skills.folder import LIST, Outcome, contents, install, stage, uninstall

OLD = {"SKILL.md": b"old", "references/a.md": b"a", "references/gone.md": b"gone"}
NEW = {"SKILL.md": b"new", "references/a.md": b"a", "references/b.md": b"b"}


def put(target: Path, files: dict[str, bytes], *, force: bool = False, is_dry: bool = False) -> Outcome:
    return install(target, files, force=force, is_dry=is_dry, made=())


def take(target: Path, *, force: bool = False, is_dry: bool = False) -> Outcome:
    return uninstall(target, force=force, is_dry=is_dry, near=target.parent / "config.json")


def seen(root: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file() and path.name != LIST}
    return {name: path.read_bytes() for name, path in found.items()}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "agent" / "skills" / SKILL


def test_a_copy_is_made_once_and_then_left_alone(target: Path) -> None:
    assert put(target, OLD) == Outcome(action="added", changed=tuple(OLD))
    assert seen(target) == OLD
    before = {path: path.stat().st_ino for path in target.rglob("*")}
    assert put(target, OLD) == Outcome(action="unchanged")
    assert {path: path.stat().st_ino for path in target.rglob("*")} == before


def test_a_newer_skill_replaces_files_and_removes_those_it_no_longer_has(target: Path) -> None:
    put(target, OLD)
    done = put(target, NEW)
    assert (done.action, set(done.changed)) == ("updated", {"SKILL.md", "references/b.md", "references/gone.md"})
    assert seen(target) == NEW


def test_what_the_user_changed_or_added_stays_unless_forced(target: Path) -> None:
    put(target, OLD)
    (target / "SKILL.md").write_bytes(b"mine")
    (target / "references" / "gone.md").write_bytes(b"mine, too")
    (target / "notes.md").write_bytes(b"added")
    done = put(target, NEW)
    assert done.kept == ("SKILL.md",)
    assert "--force" in done.detail
    assert seen(target) == {
        **NEW,
        "SKILL.md": b"mine",
        "references/gone.md": b"mine, too",
        "notes.md": b"added",
    }
    assert put(target, NEW).kept == ("SKILL.md",), "it stays theirs the next time"
    assert put(target, NEW, force=True).changed == ("SKILL.md",)
    assert (target / "SKILL.md").read_bytes() == b"new"


def test_a_dry_run_says_the_same_and_does_nothing(target: Path, tmp_path: Path) -> None:
    assert put(target, OLD, is_dry=True) == Outcome(action="added", changed=tuple(OLD))
    assert list(tmp_path.iterdir()) == []
    put(target, OLD)
    assert put(target, NEW, is_dry=True).action == "updated"
    assert take(target, is_dry=True).action == "removed"
    assert seen(target) == OLD


def test_removing_leaves_nothing_that_was_not_there_before(target: Path, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    put(target, OLD)
    assert take(target) == Outcome(action="removed", changed=tuple(OLD))
    assert [path.name for path in tmp_path.rglob("*")] == ["agent"]
    assert take(target) == Outcome(action="absent")


def test_removing_leaves_what_is_the_users(target: Path) -> None:
    put(target, OLD)
    (target / "SKILL.md").write_bytes(b"mine")
    (target / "notes.md").write_bytes(b"added")
    done = take(target)
    assert (done.changed, done.kept) == (("references/a.md", "references/gone.md"), ("SKILL.md",))
    assert seen(target) == {"SKILL.md": b"mine", "notes.md": b"added"}
    assert take(target) == Outcome(action="absent", detail="what is there is not ours")


def test_removing_by_force_takes_changed_files_but_never_added_ones(target: Path) -> None:
    put(target, OLD)
    (target / "SKILL.md").write_bytes(b"mine")
    (target / "notes.md").write_bytes(b"added")
    assert set(take(target, force=True).changed) == set(OLD)
    assert seen(target) == {"notes.md": b"added"}


def test_somebody_elses_folder_of_the_same_name_is_left_alone_unless_forced(target: Path) -> None:
    target.mkdir(parents=True)
    (target / "SKILL.md").write_bytes(b"another program's")
    assert put(target, OLD).action == "kept"
    assert take(target, force=True).action == "absent"
    assert seen(target) == {"SKILL.md": b"another program's"}
    assert put(target, OLD, force=True).action == "updated"
    assert seen(target) == OLD


def test_an_interrupted_copy_is_simply_completed(target: Path) -> None:
    target.mkdir(parents=True)
    (target / "SKILL.md").write_bytes(OLD["SKILL.md"])
    assert put(target, OLD).action == "updated"
    assert seen(target) == OLD


@pytest.mark.parametrize("text", ["", "[]", '{"files": 1}', '{"files": {"../../victim": "x"}}'])
def test_a_list_that_says_anything_strange_counts_for_nothing(target: Path, tmp_path: Path, text: str) -> None:
    victim = tmp_path / "agent" / "victim"
    put(target, OLD)
    victim.write_bytes(b"x")
    (target / LIST).write_text(
        text.replace('"x"', json.dumps("2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"))
    )
    assert take(target, force=True).action == "absent"
    assert victim.exists()


def test_an_agents_folder_of_skills_may_be_a_link(target: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    target.parent.parent.mkdir()
    target.parent.symlink_to(tmp_path / "dotfiles")
    put(target, OLD)
    assert seen(tmp_path / "dotfiles" / SKILL) == OLD
    take(target)
    assert target.parent.is_symlink()
    assert list((tmp_path / "dotfiles").iterdir()) == []


def test_a_file_where_the_folder_should_be_is_an_error_in_words(target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(b"")
    with pytest.raises(HostUnsupported, match=SKILL):
        put(target, OLD)
    assert target.read_bytes() == b""


def test_the_server_stages_the_skill_for_everybody_to_read(tmp_path: Path) -> None:
    former = os.umask(0o077)
    try:
        assert stage(tmp_path / "skills")
    finally:
        os.umask(former)
    target = tmp_path / "skills" / SKILL
    assert seen(target) == dict(contents())
    modes = {stat.S_IMODE(path.stat().st_mode) for path in target.rglob("*") if path.is_file()}
    assert modes == {0o644}
    directories = [target.parent, target, *(path for path in target.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in directories} == {0o755}


def test_the_server_writes_the_skill_only_where_it_differs(tmp_path: Path) -> None:
    stage(tmp_path)
    assert not stage(tmp_path)
    (tmp_path / SKILL / "SKILL.md").write_bytes(b"of an older version")
    assert stage(tmp_path)
    assert (tmp_path / SKILL / "SKILL.md").read_bytes() == contents()["SKILL.md"]
