"""Files are replaced whole: readers, modes and failures."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from k8e import whole
from tests.support.eventually import eventually


@pytest.mark.parametrize("durable", [False, True])
def test_readers_see_the_old_or_the_new(tmp_path: Path, durable: bool) -> None:
    path, contents = tmp_path / "file", [bytes([letter]) * 1_000_000 for letter in b"ab"]
    whole.replace(path, contents[0], mode=0o600, durable=durable)
    seen, is_over = set(), threading.Event()

    def read() -> None:
        while not is_over.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    has_begun = eventually(lambda: bool(seen))
    for turn in range(50):
        whole.replace(path, contents[turn % 2], mode=0o600, durable=durable)
    is_over.set()
    reader.join()
    assert has_begun
    assert seen <= set(contents)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_the_mode_is_what_was_asked_for_whatever_the_mask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        whole.replace(tmp_path / "file", b"x", mode=mode)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_a_failure_leaves_the_old_content_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    whole.replace(path, b"old", mode=0o600)
    with pytest.raises(TypeError):
        whole.replace(path, "no bytes", mode=0o600)  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        whole.replace(tmp_path / "directory", b"new", mode=0o600)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["directory", "file"]


def test_threads_that_write_one_file_at_once_do_not_meet(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([letter]) * 200_000 for letter in b"abcd"]

    def write(content: bytes) -> None:
        for _ in range(50):
            whole.replace(path, content, mode=0o600)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(len(contents)) as threads:
        list(threads.map(write, contents))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_process_left_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    for name in (".file.0a1b2c3d4e5f.new", "file.new", ".file", "new"):
        (tmp_path / name).write_bytes(b"half")
    whole.clear(tmp_path)
    whole.clear(tmp_path / "missing")
    assert sorted(each.name for each in tmp_path.iterdir()) == [".file", "file.new", "new"]
