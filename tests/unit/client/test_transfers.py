"""Files and trees between here and a session; and what a hostile sandbox cannot do with a download."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.client import (
    AsyncSandboxClient,
    Conflict,
    FileInfo,
    InvalidRequest,
    NotFound,
    Session,
)
from k8e.client.discovery import Target
from k8e.client.landing import link_stays_inside, parts_below


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


LARGE = bytes(range(256)) * 8192


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "script").write_text("#!/bin/sh\n")
    (root / "script").chmod(0o755)
    (root / "deep" / "large").write_bytes(LARGE)
    (root / "deep" / "secret").write_bytes(b"\x00")
    (root / "deep" / "secret").chmod(0o600)
    (root / "deep" / os.fsdecode(b"odd \xff\n name")).write_bytes(b"odd")
    return root


def test_a_tree_goes_up_and_comes_back_the_same(session: Session, tree: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    sent = session.files.upload(tree, "copy", progress=lambda *each: seen.append(each))
    total = len(LARGE) + 10 + 1 + 3
    assert (sent.files, sent.bytes, sent.skipped) == (4, total, ())
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1][1:] == (total, total)
    back = tmp_path / "back"
    fetched = session.files.download("copy", back)
    assert (fetched.files, fetched.bytes, fetched.skipped) == (4, total, ())
    assert (back / "deep" / "large").read_bytes() == LARGE
    assert (back / "deep" / os.fsdecode(b"odd \xff\n name")).read_bytes() == b"odd"
    assert (mode(back / "script"), mode(back / "deep" / "secret")) == (0o755, 0o600)
    assert list((back / "empty").iterdir()) == []


def test_a_file_goes_to_a_name_or_into_a_directory(session: Session, tree: Path, tmp_path: Path) -> None:
    session.files.upload(tree / "script", "name")
    session.files.upload(tree / "script", "directory/")
    session.files.upload(tree / "script", "directory")
    assert session.files.read("name") == session.files.read("directory/script") == "#!/bin/sh\n"
    session.files.download("name", tmp_path / "named")
    session.files.download("name", tmp_path)
    assert (tmp_path / "named").read_text() == (tmp_path / "name").read_text() == "#!/bin/sh\n"


def test_what_is_not_there_is_said(session: Session, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        session.files.upload(tmp_path / "none", "x")
    with pytest.raises(NotFound):
        session.files.download("none", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_progress_that_fails_ends_the_transfer_and_leaves_no_half_file(session: Session, tmp_path: Path) -> None:
    session.files.write("f", LARGE)

    def fail(path: str, done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        session.files.download("f", tmp_path / "f", progress=fail)
    assert list(tmp_path.iterdir()) == []


def test_progress_that_fails_ends_an_upload_with_its_own_error(session: Session, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(LARGE)

    def fail(path: str, done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        session.files.upload(tmp_path / "f", "f", progress=fail)
    with pytest.raises(NotFound):
        session.files.stat("f")


class HostileClient(AsyncSandboxClient):
    """Answers as a sandbox would that has taken over everything on its side."""

    def __init__(self, entries: list[FileInfo]) -> None:
        super().__init__(target=Target(endpoint="127.0.0.1:1", found="test"))
        self._entries = entries

    async def stat(self, session_id: str, path: str, *, follow: bool = True) -> FileInfo:
        return FileInfo(path="/workspace", type="directory", size=0, modified=0, mode=0o755)

    async def list_directory(
        self, session_id: str, path: str = "", *, recursive: bool = False, since: int = 0
    ) -> list[FileInfo]:
        return self._entries

    async def read_chunks(
        self, session_id: str, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[bytes]:
        yield b"planted"


def entry(path: str, kind: str = "file", *, target: str = "", bits: int = 0o644) -> FileInfo:
    return FileInfo(path=path, type=kind, size=7, modified=0, mode=bits, target=target)


def everything_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.anyio
async def test_what_a_sandbox_names_plainly_lands_inside(tmp_path: Path) -> None:
    """The control of the attacks below."""
    client = HostileClient([entry("/workspace/a", "directory"), entry("/workspace/a/x")])
    assert (await client.download("s", "", tmp_path / "in")).files == 1
    assert everything_below(tmp_path) == {"in", "in/a", "in/a/x"}


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/../x",
        "/workspace/a/../../x",
        "../x",
        "/etc/passwd",
        "/workspace",
        "/workspacex/x",
        "/workspace//x",
        "/workspace/./x",
        "/workspace/a/..",
        "/workspace/x\0y",
        "x",
        "",
    ],
)
@pytest.mark.parametrize("kind", ["file", "directory", "symlink"])
@pytest.mark.anyio
async def test_a_name_that_leads_elsewhere_is_refused_before_anything_is_written(
    tmp_path: Path, path: str, kind: str
) -> None:
    client = HostileClient([entry("/workspace/first"), entry(path, kind, target="first")])
    with pytest.raises(InvalidRequest, match="not copied"):
        await client.download("s", "", tmp_path / "in")
    assert everything_below(tmp_path) == set()


@pytest.mark.anyio
async def test_nothing_is_written_through_a_link_that_the_sandbox_planted(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    client = HostileClient(
        [
            entry("/workspace/out", "symlink", target=str(outside)),
            entry("/workspace/up", "symlink", target="../outside"),
            entry("/workspace/out/x"),
            entry("/workspace/up/x"),
        ]
    )
    done = await client.download("s", "", tmp_path / "in")
    assert done.skipped == ("/workspace/out", "/workspace/up")
    assert everything_below(tmp_path) == {"outside", "in", "in/out", "in/out/x", "in/up", "in/up/x"}


@pytest.mark.anyio
async def test_a_link_and_a_directory_of_the_same_name_end_in_a_clear_error(tmp_path: Path) -> None:
    client = HostileClient(
        [entry("/workspace/d", "symlink", target="e"), entry("/workspace/d/x"), entry("/workspace/e", "directory")]
    )
    with pytest.raises(Conflict, match="in the way"):
        await client.download("s", "", tmp_path / "in")


@pytest.mark.anyio
async def test_links_that_were_here_before_are_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "in"
    outside.mkdir()
    inside.mkdir()
    (outside / "file").write_text("mine")
    (inside / "directory").symlink_to(outside)
    (inside / "file").symlink_to(outside / "file")
    with pytest.raises(Conflict, match="perhaps a link"):
        await HostileClient([entry("/workspace/directory/x")]).download("s", "", inside)
    await HostileClient([entry("/workspace/file")]).download("s", "", inside)
    assert (outside / "file").read_text() == "mine"
    assert (inside / "file").read_text() == "planted"
    assert everything_below(outside) == {"file"}


@pytest.mark.anyio
async def test_no_file_comes_with_rights_over_its_owner(tmp_path: Path) -> None:
    await HostileClient([entry("/workspace/x", bits=0o6755)]).download("s", "", tmp_path)
    assert mode(tmp_path / "x") == 0o755


@pytest.mark.anyio
async def test_a_device_is_left_out_and_said(tmp_path: Path) -> None:
    client = HostileClient([entry("/workspace/null", "other"), entry("/workspace/x")])
    assert (await client.download("s", "", tmp_path)).skipped == ("/workspace/null",)
    assert everything_below(tmp_path) == {"x"}


@pytest.mark.parametrize(
    ("place", "target", "stays"),
    [
        ("a", "b", True),
        ("a", "./b/c", True),
        ("d/a", "../b", True),
        ("d/e/a", "../../b", True),
        ("a", "", False),
        ("a", "/etc/passwd", False),
        ("a", "../b", False),
        ("d/a", "../../b", False),
        # Up again after a name climbs from wherever that name leads: another link may have moved it.
        ("a", "x/y/up/..", False),
        ("a", "b\0c", False),
    ],
)
def test_a_link_stays_inside_or_is_left_out(place: str, target: str, stays: bool) -> None:
    assert link_stays_inside(place.split("/"), target) is stays


def test_links_inside_are_kept_as_links(session: Session, tmp_path: Path) -> None:
    session.exec("mkdir d; echo x > d/file; ln -s d/file good; ln -s /etc/passwd bad")
    done = session.files.download("", tmp_path / "in")
    assert (tmp_path / "in" / "good").readlink() == Path("d/file")
    assert [path.rpartition("/")[2] for path in done.skipped] == ["bad"]


def test_parts_are_what_stands_below_the_root() -> None:
    assert parts_below("/workspace/", "/workspace/a/b") == ("a", "b")
    assert parts_below("/", "/etc") == ("etc",)
