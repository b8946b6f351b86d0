"""`cp`: both ways, trees, modes; and a session that lies about names leads no write elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from k8e.cli.copying import Place, place
from k8e.cli.fetching import download
from k8e.cli.sending import Upload
from k8e.client.errors import Conflict, InvalidRequest
from k8e.client.landing import Landing, link_stays_inside, parts_below
from k8e.client.light.calls import QUICK_S, Answer, Duplex, Request, encoded
from k8e.client.light.places import unix_path
from k8e.client.light.unix import UnixCalls

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def told(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    assert b"Traceback" not in done.stderr
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


@pytest.fixture
def session_id(k8e: Run) -> str:
    return str(told(k8e("create"))["session_id"])


def seen(root: Path) -> dict[str, tuple[str, object]]:
    """A tree as a value: what is where, with which mode and content."""
    found: dict[str, tuple[str, object]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("directory", path.stat().st_mode & 0o777)
        else:
            found[name] = (oct(path.stat().st_mode & 0o777), path.read_bytes())
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").mkdir(mode=0o700)
    (root / "deep" / "binary").write_bytes(bytes(range(256)) * 4096)
    (root / "deep" / "er" / "run me.sh").write_text("#!/bin/sh\n")
    (root / "deep" / "er" / "run me.sh").chmod(0o755)
    (root / os.fsdecode(b"not-utf8-\xff")).write_text("x")
    (root / "private").write_text("y")
    (root / "private").chmod(0o600)
    (root / "link").symlink_to("deep/binary")
    return root


def test_a_tree_goes_in_and_comes_out_as_it_was(k8e: Run, session_id: str, tree: Path, tmp_path: Path) -> None:
    gone = told(k8e("cp", str(tree), f"{session_id}:copy"))
    assert (gone["ok"], gone["files"]) == (True, 4)
    shown = k8e("run", "--raw", "--session-id", session_id, "readlink copy/link; stat -c %a copy/private copy/empty")
    assert shown.stdout == b"deep/binary\n600\n700\n"
    back = tmp_path / "back"
    assert told(k8e("cp", f"{session_id}:/workspace/copy", str(back)))["files"] == 4
    assert seen(back) == seen(tree)


def test_a_file_goes_to_a_name_or_into_a_directory(k8e: Run, session_id: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"\x00\xff")
    (tmp_path / "here").mkdir()
    assert told(k8e("cp", str(tmp_path / "one"), f"{session_id}:two"))["bytes"] == 2
    k8e("run", "--session-id", session_id, "mkdir there; chmod 640 two")
    k8e("cp", str(tmp_path / "one"), f"{session_id}:there")
    assert k8e("read", "--raw", session_id, "there/one").stdout == b"\x00\xff"
    k8e("cp", f"{session_id}:two", str(tmp_path / "here"))
    assert (tmp_path / "here" / "two").read_bytes() == b"\x00\xff"
    assert (tmp_path / "here" / "two").stat().st_mode & 0o777 == 0o640


class Listening(UnixCalls):
    """The server's calls, and which of them were made."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.asked: list[str] = []

    def unary(self, rpc: str, request: Request, *, timeout_s: float | None = QUICK_S) -> Answer:
        self.asked.append(rpc)
        return super().unary(rpc, request, timeout_s=timeout_s)


def test_a_file_that_was_there_gets_the_mode_it_has_here_without_a_command_inside(
    k8e: Run, session_id: str, server: Path, tmp_path: Path
) -> None:
    k8e("run", "--session-id", session_id, "touch tool; chmod 644 tool")
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    calls = Listening(unix_path(server))
    Upload(calls, session_id, lambda files, size: None).copy(tmp_path / "tool", "/workspace/tool")
    assert calls.asked == ["StatFile"]
    assert k8e("run", "--raw", "--session-id", session_id, "stat -c %a tool").stdout == b"755\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["a", "b"], "invalid request"),
        (["sess-1:a", "sess-2:b"], "invalid request"),
        (["/nowhere/at/all", "sess-1:b"], "not found"),
        (["sess-none:a", "b"], "not found"),
    ],
)
def test_what_cannot_be_copied_is_said(k8e: Run, words: list[str], error: str) -> None:
    done = k8e("cp", *words)
    assert (done.returncode, told(done)["error"]) == (1, error)


def test_a_file_that_cannot_be_read_here_is_no_trouble_of_the_server(k8e: Run, session_id: str) -> None:
    done = k8e("cp", "/proc/self/mem", f"{session_id}:there")
    assert (done.returncode, told(done)["error"]) == (1, "invalid request")
    assert "Start a server" not in str(told(done)["detail"])
    assert k8e("read", session_id, "there").returncode == 1


def test_a_colon_makes_a_session_unless_a_slash_stands_before_it() -> None:
    assert place("sess-1:/a:b") == Place("sess-1", "/a:b")
    assert place("sess-1:") == Place("sess-1", "/workspace")
    assert place("./a:b") == Place("", "./a:b")
    assert place("plain") == Place("", "plain")
    assert place("C:\\file") == Place("", "C:\\file")


class LyingSession:
    """A session whose agent was taken over: it answers every listing with what the test says."""

    def __init__(self, entries: Sequence[Request]) -> None:
        self._entries = entries

    def unary(self, rpc: str, request: Request, *, timeout_s: float | None = QUICK_S) -> Answer:
        return Answer({"type": "directory"} if rpc == "StatFile" else {"files": list(self._entries)})

    def stream(
        self, rpc: str, requests: Sequence[Request] | Iterator[Request], *, timeout_s: float | None = None
    ) -> Iterator[Answer]:
        yield Answer({"data": encoded(b"hostile")})

    def duplex(self, rpc: str) -> Duplex:
        raise NotImplementedError

    def close(self) -> None:
        pass


def entry(path: str, kind: str = "file", target: str = "") -> Request:
    return {"path": path, "type": kind, "mode": 0o4777, "target": encoded(target)}


def fetched(entries: Sequence[Request], target: Path) -> None:
    download(LyingSession(entries), "sess-1", "/workspace/out", target, lambda files, count: None)


@pytest.mark.parametrize(
    "name",
    [
        "/workspace/out/../../evil",
        "/workspace/out/a/../../../evil",
        "/etc/evil",
        "evil",
        "/workspace/out",
        "/workspace/out/",
        "/workspace/out//evil",
        "/workspace/outside/evil",
        "/workspace/out/./evil",
        "/workspace/out/a\0b",
    ],
)
def test_a_name_that_leads_out_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="not copied"):
        fetched([entry("/workspace/out/fine"), entry(name)], tmp_path / "in" / "here")
    assert list(tmp_path.rglob("*")) == []
    fetched([entry("/workspace/out/fine")], tmp_path / "in" / "here")  # the control
    assert (tmp_path / "in" / "here" / "fine").read_bytes() == b"hostile"


def test_a_link_is_never_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    fetched([entry("/workspace/out/d", "symlink", "e"), entry("/workspace/out/e", "directory")], tmp_path / "here")
    assert (tmp_path / "here" / "d").is_symlink()  # the control: harmless links are kept
    (tmp_path / "here" / "d").unlink()
    (tmp_path / "here" / "d").symlink_to(victim)
    with pytest.raises(Conflict, match="link"):
        fetched([entry("/workspace/out/d/evil")], tmp_path / "here")
    with pytest.raises(Conflict, match="link"):
        fetched([entry("/workspace/out/d", "directory"), entry("/workspace/out/d/evil")], tmp_path / "here")
    assert list(victim.iterdir()) == []


def test_a_link_in_the_same_listing_is_not_written_through_either(tmp_path: Path) -> None:
    both = [entry("/workspace/out/d", "symlink", "e"), entry("/workspace/out/d/evil"), entry("/workspace/out/e/x")]
    with pytest.raises(Conflict, match="in the way"):
        fetched(both, tmp_path / "here")
    assert not (tmp_path / "here" / "e" / "evil").exists()


def test_a_file_in_place_of_a_link_replaces_the_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "f").symlink_to(tmp_path / "victim")
    fetched([entry("/workspace/out/f")], tmp_path / "here")
    assert (tmp_path / "victim").read_text() == "untouched"
    assert not (tmp_path / "here" / "f").is_symlink()
    assert (tmp_path / "here" / "f").stat().st_mode & 0o7777 == 0o777  # no set-uid from there


def test_links_that_point_out_and_odd_things_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = [
        entry("/workspace/out/abs", "symlink", "/etc/passwd"),
        entry("/workspace/out/up", "symlink", "../../x"),
        entry("/workspace/out/dev\x1b[2J", "other"),
        entry("/workspace/out/fine", "symlink", "a/b"),
    ]
    fetched(out, tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["fine"]
    said = capsys.readouterr().err
    assert said.count("left out") == 3
    assert "\x1b" not in said


def test_an_interrupted_file_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Landing(tmp_path).file(("f",), 0o644, pieces())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("parts", "target", "expected"),
    [
        (("a",), "b", True),
        (("a", "b"), "../c", True),
        (("a", "b"), "../../c", False),
        (("a",), "x/../../y", False),
        (("a",), "x/../y", False),
        (("a",), "/x", False),
        (("a",), "", False),
    ],
)
def test_where_a_link_leads_is_judged_by_its_text(parts: tuple[str, ...], target: str, expected: bool) -> None:
    assert link_stays_inside(parts, target) is expected


def test_names_below_the_root_directory_are_fine() -> None:
    assert parts_below("/", "/etc/hosts") == ("etc", "hosts")
