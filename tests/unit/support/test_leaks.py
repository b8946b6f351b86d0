"""The leak checker itself: it sees each kind of trace, and only ours."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.eventually import eventually
from tests.support.leaks import Ledger
from tests.support.skips import needs_root

PATIENCE_S = 60.0
by_root = needs_root("mounts, and makes control groups")


def _kinds(ledger: Ledger) -> set[str]:
    return {trace.kind for trace in ledger.now() - ledger.before}


def test_a_process_that_names_our_directory_is_seen_until_it_ends(ledger: Ledger, data_dir: Path) -> None:
    assert "process" not in _kinds(ledger)
    program = [sys.executable, "-c", "import sys; sys.stdin.read()", str(data_dir)]
    with subprocess.Popen(program, stdin=subprocess.PIPE):
        # A program has no words in the kernel's listing until the kernel has wholly loaded it.
        assert eventually(lambda: {"process", "child"} <= _kinds(ledger))
    assert "process" not in _kinds(ledger)


def test_a_bound_socket_and_its_file_are_seen(ledger: Ledger, data_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(data_dir / "s"))
        assert "unix socket" in _kinds(ledger)
    assert "unix socket" not in _kinds(ledger)


def test_an_open_file_is_seen(ledger: Ledger, data_dir: Path) -> None:
    with (data_dir / "file").open("w", encoding="utf-8"):
        assert "open file" in _kinds(ledger)
    assert "open file" not in _kinds(ledger)


def test_the_directory_of_a_sandbox_is_seen(ledger: Ledger, data_dir: Path) -> None:
    sandbox = data_dir / "sandboxes" / "one"
    sandbox.mkdir(parents=True)
    assert "sandbox directory" in _kinds(ledger)
    sandbox.rmdir()


@by_root
def test_a_mount_is_seen(ledger: Ledger, data_dir: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "k8e-test", str(data_dir)], check=True, timeout=PATIENCE_S)
    try:
        assert "mount" in _kinds(ledger)
    finally:
        subprocess.run(["umount", str(data_dir)], check=True, timeout=PATIENCE_S)
    assert "mount" not in _kinds(ledger)


@by_root
def test_a_control_group_is_seen(ledger: Ledger) -> None:
    hierarchy = next(Path("/sys/fs/cgroup").glob("**/cgroup.procs")).parent
    group = hierarchy / "k8e" / f"leak-test-{os.getpid()}"
    group.mkdir(parents=True)
    try:
        assert "cgroup" in _kinds(ledger)
    finally:
        group.rmdir()


def test_what_lives_in_a_lent_directory_is_left_alone_between_tests(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    book = Ledger(root=tmp_path / "root", before=frozenset())
    shared, fresh = book.lend("server"), book.make()
    (shared / "sandboxes" / "one").mkdir(parents=True)
    (fresh / "sandboxes" / "two").mkdir(parents=True)
    names = {Path(trace.name).name for trace in book.now() if trace.kind == "sandbox directory"}
    assert names == {"two"}
    every = {Path(trace.name).name for trace in book.now(lent_too=True) if trace.kind == "sandbox directory"}
    assert every == {"one", "two"}
