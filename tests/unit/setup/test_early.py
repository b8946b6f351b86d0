"""What would stop set-up or the server later is found before anything is built, and the error says what to do."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from k8e.errors import Conflict, HostUnsupported
from k8e.setup import early
from k8e.setup.early import Space, kernel_version, require_free, require_kernel, require_space, require_writable
from tests.support.skips import needs_root

LISTENER = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
)


@pytest.mark.parametrize(
    ("release", "version"), [("6.18.44-fc-v490", (6, 18)), ("5.19.0", (5, 19)), ("5.4", (5, 4)), ("odd", (0, 0))]
)
def test_the_kernel_version_is_read(release: str, version: tuple[int, int]) -> None:
    assert kernel_version(release) == version


def test_an_old_kernel_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    require_kernel()
    monkeypatch.setattr(early, "OLDEST_KERNEL", (99, 0))
    with pytest.raises(HostUnsupported, match=r"need 99\.0 or newer: boot"):
        require_kernel()


def test_a_taken_port_names_who_has_it_and_one_that_is_free() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        port = int(holder.stdout.readline())
        with pytest.raises(Conflict) as caught:
            require_free([("127.0.0.1", 0), ("127.0.0.1", port)])
        holder.communicate("\n")
    assert f"127.0.0.1:{port}, which process {holder.pid} ({sys.executable} -c" in str(caught.value)
    other = re.search(r"set K8E_SANDBOX_LISTEN=127\.0\.0\.1:(\d+) and run this again$", str(caught.value))
    assert other is not None
    assert port < int(other[1]) < port + early.PORTS_TRIED
    require_free([("127.0.0.1", port)])  # the control


def test_two_who_look_at_the_same_time_do_not_disturb_each_other() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        require_free([other.getsockname()])


def test_an_address_of_another_machine_is_said() -> None:
    with pytest.raises(Conflict, match=r"192\.0\.2\.1:1 .*: set K8E_SANDBOX_LISTEN to an address of this machine"):
        require_free([("192.0.2.1", 1)])


@needs_root("mounts a small disk")
def test_what_is_wanted_on_one_disk_is_added_up(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "k8e-test", str(disk)], check=True)
    try:
        wanted = [
            Space(path=disk / "a" / "b", size=2 * 10**8, moved_by="K8E_DATA_DIR"),
            Space(path=disk / "c", size=2 * 10**8, moved_by="K8E_HOME"),
        ]
        require_space(wanted[:1])  # each of them fits
        require_space(wanted[1:])
        with pytest.raises(HostUnsupported) as caught:
            require_space(wanted)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert str(caught.value) == (
        f"set-up needs 0.4 GB on the disk of {disk}, and 0.3 GB are free: "
        "free some, or name a directory on another disk with K8E_DATA_DIR or K8E_HOME"
    )


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    require_writable(tmp_path / "new" / "newer", "choose another")
    with pytest.raises(HostUnsupported, match=f"cannot write {tmp_path}/file: choose another"):
        require_writable(tmp_path / "file" / "below", "choose another")
