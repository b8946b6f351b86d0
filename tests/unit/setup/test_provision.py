"""Set-up as a whole: each step looks first, a failure is remembered, two at once wait for each other."""

from __future__ import annotations

import fcntl
import socket
import threading
from pathlib import Path

import pytest

from k8e.errors import Conflict, HostUnsupported
from k8e.setup import packages, provision
from k8e.setup.provision import Work, ensure, notes
from k8e.setup.report import Silent, Step
from tests.support.skips import needs_root

by_root = needs_root("set-up installs programs")


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A complete host on which gVisor cannot be had; counts the attempts."""
    attempts: list[str] = []

    def fail(work: Work, step: Step) -> None:
        attempts.append("gvisor")
        raise HostUnsupported("no origin worked")

    monkeypatch.setattr(packages, "missing", lambda: ())
    monkeypatch.setattr(provision, "OPTIONAL", (("gvisor", "gVisor", fail),))
    return attempts


@by_root
def test_what_cannot_be_had_is_noted_and_the_rest_goes_on(tmp_path: Path, tried: list[str]) -> None:
    done = ensure(tmp_path, Silent(), env={})
    assert done.notes == {"gvisor": "no origin worked"} == notes(tmp_path)
    assert done.runsc is None
    assert done.bundle.path.is_dir()


@by_root
def test_a_known_failure_is_not_tried_again_unless_asked(tmp_path: Path, tried: list[str]) -> None:
    ensure(tmp_path, Silent(), env={})
    ensure(tmp_path, Silent(), env={})
    assert tried == ["gvisor"]
    ensure(tmp_path, Silent(), env={}, again=True)
    assert tried == ["gvisor", "gvisor"]


@by_root
def test_another_attempt_forgets_old_failures(
    tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure(tmp_path, Silent(), env={})
    monkeypatch.setattr(provision, "FINGERPRINT", "newer")
    assert notes(tmp_path) == {}


def test_without_root_everything_that_is_missing_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(packages, "missing", lambda: packages.NEEDS)
    with pytest.raises(HostUnsupported) as caught:
        ensure(tmp_path, Silent(), env={})
    assert all(need.package in str(caught.value) for need in packages.NEEDS)
    assert "gVisor" in str(caught.value)
    assert "as root" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@by_root
def test_a_data_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostUnsupported, match="--data-dir"):
        ensure(tmp_path / "file", Silent(), env={})


@by_root
@pytest.mark.parametrize("trouble", ["disk", "port"])
def test_what_would_stop_it_later_is_said_before_anything_is_made(
    tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = [taken.getsockname()] if trouble == "port" else []
        if trouble == "disk":
            monkeypatch.setattr(provision, "DATA_BYTES", 10**18)
        with pytest.raises((HostUnsupported, Conflict), match=r"K8E_DATA_DIR|K8E_SANDBOX_LISTEN"):
            ensure(tmp_path, Silent(), env={}, addresses=addresses)
    assert (tried, list(tmp_path.iterdir())) == ([], [])


@by_root
def test_a_full_disk_keeps_nobody_from_using_what_is_there(
    tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure(tmp_path, Silent(), env={})
    monkeypatch.setattr(provision, "DATA_BYTES", 10**18)
    ensure(tmp_path, Silent(), env={})


@by_root
def test_whether_anything_was_done_is_known(tmp_path: Path, tried: list[str]) -> None:
    assert ensure(tmp_path, Silent(), env={}).has_worked
    assert not ensure(tmp_path, Silent(), env={}).has_worked


class Waiting(Silent):
    """Notices when somebody says that it waits."""

    def __init__(self) -> None:
        self.heard = threading.Event()

    def say(self, text: str) -> None:
        if "waiting" in text:
            self.heard.set()


@by_root
def test_two_set_ups_wait_for_each_other(tmp_path: Path, tried: list[str]) -> None:
    tools = provision.tools_dir(tmp_path)
    tools.mkdir(parents=True)
    report = Waiting()
    second = threading.Thread(target=ensure, args=(tmp_path, report), kwargs={"env": {}})
    with (tools / "lock").open("w", encoding="utf-8") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second.start()
        assert report.heard.wait(60)
        assert tried == []
    second.join(60)
    assert tried == ["gvisor"]
