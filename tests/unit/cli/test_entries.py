"""What fills a workspace before a command runs: manifests and repositories."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from k8e.cli.entries import Directory, File, Repository, parsed
from k8e.client.errors import InvalidRequest

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def test_a_manifest_is_read_as_it_is_documented() -> None:
    text = """
entries:
  - file: {path: a/b.sh, content: "echo $HOME `id`\\n", mode: 0755}
  - file: {path: /workspace/plain, content: 12}
  - dir: {path: data}
  - gitRepo: {path: src, repo: "https://example.com/x.git"}
  - gitRepo: {path: old, repo: "git@example.com:x/y.git", ref: v1.0}
"""
    assert parsed(text) == [
        File("/workspace/a/b.sh", "echo $HOME `id`\n", 0o755),
        File("/workspace/plain", "12", None),
        Directory("/workspace/data"),
        Repository("/workspace/src", "https://example.com/x.git", "main"),
        Repository("/workspace/old", "git@example.com:x/y.git", "v1.0"),
    ]


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ("file: {path: ../x}", "path"),
        ("file: {path: a/../../x}", "path"),
        ("file: {path: /etc/passwd}", "path"),
        ("file: {path: ''}", "path"),
        ("file: {path: /workspace}", "path"),
        ('file: {path: "a\\0b"}', "path"),
        ("file: {path: a, mode: 0999}", "mode"),
        ("file: {path: a, mode: rwx}", "mode"),
        ("file: {path: a, mode: '77777'}", "mode"),
        ("file: {path: a, owner: root}", "owner"),
        ("file: {path: a, content: [1]}", "texts"),
        ("dir: {path: a}, file: {path: b}", "exactly one"),
        ("socket: {path: a}", "socket"),
        ("gitRepo: {path: a, repo: '--upload-pack=touch /tmp/x'}", "git URL"),
        ("gitRepo: {path: a, repo: 'ext::sh -c id'}", "git URL"),
        ("gitRepo: {path: a, repo: 'https://example.com/x y'}", "git URL"),
        ('gitRepo: {path: a, repo: "https://example.com/x\\nfoo"}', "git URL"),
        ("gitRepo: {path: a, repo: 'https://example.com/x', ref: '--help'}", "branch"),
        ("gitRepo: {path: a, repo: 'https://example.com/x', ref: 'a..b'}", "branch"),
        ("gitRepo: {path: ../a, repo: 'https://example.com/x'}", "path"),
    ],
)
def test_what_reaches_out_or_is_unknown_is_refused_by_name(entry: str, part: str) -> None:
    with pytest.raises(InvalidRequest, match=r"entries\[0\]") as refused:
        parsed("entries:\n  - {" + entry + "}")
    assert part in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "entries: 1", "a: [", "entries:\n- x", "!!python/object/apply:os.getpid []"]
)
def test_what_is_no_manifest_is_bad_input(text: str) -> None:
    with pytest.raises(InvalidRequest, match="manifest"):
        parsed(text)


def told(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    assert b"Traceback" not in done.stderr
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "m.yaml"
    path.write_text(
        "entries:\n"
        "  - dir: {path: empty}\n"
        "  - file: {path: bin/hello, content: \"#!/bin/sh\\nprintf '%s' '$HOME `id`'\\n\", mode: '0750'}\n"
    )
    return str(path)


@pytest.fixture
def repository(tmp_path: Path) -> str:
    directory = tmp_path / "origin"
    git = ["git", "-C", str(directory), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(directory)], check=True)
    (directory / "file").write_text("from the repository\n")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    return f"file://{directory}"


def test_create_makes_the_entries_and_counts_them(k8e: Run, manifest: str) -> None:
    made = told(k8e("create", "--manifest", manifest))
    assert made["entries_materialized"] == 2
    words = ["run", "--session-id", str(made["session_id"])]
    shown = told(k8e(*words, "ls -d empty; bin/hello; stat -c ' %a' bin/hello"))
    assert shown["stdout"] == "empty\n$HOME `id` 750\n"


def test_run_clones_a_repository_first(k8e: Run, repository: str) -> None:
    words = ["--git-repo", repository, "--git-ref", "trunk", "--git-path", "src/it"]
    made = told(k8e("create", *words))
    session = ["--session-id", str(made["session_id"])]
    assert (made["entries_materialized"], told(k8e("run", *session, "cat src/it/file"))["stdout"]) == (
        1,
        "from the repository\n",
    )
    again = told(k8e("run", *session, *words, "true"))
    assert (again["error"], "exists already" in str(again["detail"])) == ("conflict", True)


def test_a_session_that_cannot_be_filled_is_not_left_behind(k8e: Run, repository: str) -> None:
    before = told(k8e("sessions"))["sessions"]
    failed = k8e("create", "--git-repo", repository, "--git-ref", "no-such-branch")
    assert (failed.returncode, told(failed)["error"]) == (2, "server error")
    assert told(k8e("sessions"))["sessions"] == before


@pytest.mark.parametrize(
    "words", [["--manifest", "/nowhere"], ["--git-repo", "ext::sh"], ["--git-repo", "x", "--git-ref", ""]]
)
def test_bad_entries_are_told_before_a_session_is_made(k8e: Run, words: list[str], tmp_path: Path) -> None:
    for command in (["create"], ["run", "true"]):
        done = k8e(*command, *words)
        assert (done.returncode, told(done)["error"]) == (1, "invalid request")
    assert not (tmp_path / ".k8e").exists()
