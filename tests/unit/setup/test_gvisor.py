"""The choice of a runsc: which are new enough, which pass, and what is written down."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from k8e.errors import HostUnsupported
from k8e.setup import gvisor
from k8e.setup.report import Activity, Step, Steps

GOOD = """#!/bin/sh
case "$1" in --version) echo "runsc version release-20260101.0"; exit 0 ;; esac
echo k8e-probe
"""


def _program(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("release-20240729.0", 20240729),
        ("0.0~20221219.0-2+b3", 20221219),
        (gvisor.PINNED, 20260905),
        ("VERSION_MISSING", 0),
        ("", 0),
    ],
)
def test_the_date_is_read_from_every_kind_of_version(text: str, date: int) -> None:
    assert gvisor.version_date(text) == date


def test_the_pinned_revision_is_new_enough() -> None:
    assert gvisor.version_date(gvisor.PINNED) >= gvisor.OLDEST


def test_a_probe_that_answers_passes(tmp_path: Path) -> None:
    assert gvisor.probe(_program(tmp_path / "runsc", GOOD)) == ""


def test_a_probe_that_fails_says_why(tmp_path: Path) -> None:
    assert "no such platform" in gvisor.probe(
        _program(tmp_path / "runsc", "#!/bin/sh\necho no such platform; exit 3\n")
    )


def test_a_probe_that_hangs_is_ended_with_all_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gvisor, "PROBE_TIMEOUT_S", 0.3)
    hanging = _program(tmp_path / "runsc", "#!/bin/sh\nsleep 60 & sleep 60\n")
    assert "no answer" in gvisor.probe(hanging)


def test_a_program_that_is_not_one_cannot_be_started(tmp_path: Path) -> None:
    assert "cannot be started" in gvisor.probe(tmp_path / "missing")


def test_the_choice_is_recorded_and_reused_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    program = _program(tmp_path / "runsc", GOOD)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tools = tmp_path / "tools"
    chosen = gvisor.acquire(tools, step, env={})
    assert (chosen.path, chosen.version, chosen.origin) == (str(program), "release-20260101.0", "found on PATH")
    assert gvisor.recorded(tools) == chosen
    _program(program, GOOD + "# replaced\n")
    assert gvisor.recorded(tools) is None


def test_when_nothing_works_each_origin_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    old = _program(tmp_path / "runsc", GOOD.replace("20260101", "20221219"))
    monkeypatch.setattr(gvisor, "ORIGINS", (("found on PATH", lambda *_: old), ("archive", lambda *_: None)))
    with pytest.raises(HostUnsupported) as caught:
        gvisor.acquire(tmp_path / "tools", step, env={})
    assert "is older than" in str(caught.value)
    assert "archive: not available" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"path": "/x"}'])
def test_a_damaged_record_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "runsc.json").write_text(text, encoding="utf-8")
    assert gvisor.recorded(tmp_path) is None


class Heard:
    """What a person would see."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.activities: list[Activity] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def show(self, activity: Activity) -> None:
        self.activities.append(activity)

    def clear(self) -> None: ...


def _only_source(monkeypatch: pytest.MonkeyPatch, go: Path) -> None:
    monkeypatch.setattr(gvisor, "_go", lambda: str(go))
    last = ("the distribution's package", lambda attempt: pytest.fail("there was no time left"))
    monkeypatch.setattr(gvisor, "ORIGINS", (("built from source", gvisor._from_source), last))


def test_a_build_takes_no_longer_than_its_line_says_and_the_operator_may_say_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = _program(tmp_path / "go", "#!/bin/sh\necho compiling; sleep 86397 & sleep 86397\n")
    _only_source(monkeypatch, go)
    heard = Heard()
    with (
        Steps(heard, log=tmp_path / "setup.log", shared=tmp_path / "setup.json") as steps,
        pytest.raises(HostUnsupported, match=r"(?s)no end after.*compiling.*setup\.log.*not tried"),
    ):
        gvisor.acquire(tmp_path / "tools", steps.step("gVisor"), env={"PATH": "/usr/bin:/bin"}, timeout_s=0.5)
    assert 0 < heard.activities[0].most_s <= 0.5
    assert "set K8E_SANDBOX_GVISOR_TIMEOUT=1h and run `k8e doctor --fix`" in heard.lines[-1]
    assert "compiling" in (tmp_path / "setup.log").read_text()
    assert not list((tmp_path / "tools").glob(".build-*"))


def test_a_build_in_time_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    script = f"while [ \"$1\" != -o ]; do shift; done; cat >$2 <<'END'\n{GOOD}END\nchmod 755 $2\n"
    go = _program(tmp_path / "go", f"#!/bin/sh\n{script}")
    _only_source(monkeypatch, go)
    left_by_a_killed_one = tmp_path / "tools" / ".build-x"
    left_by_a_killed_one.mkdir(parents=True)
    chosen = gvisor.acquire(tmp_path / "tools", step, env={"PATH": "/usr/bin:/bin"}, timeout_s=60)
    assert chosen.origin == "built from source"
    assert not left_by_a_killed_one.exists()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths that were asked of a server which has the release 20260101, and nothing that would tell of its checksum."""
    asked: list[str] = []

    class Serving(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    place = tmp_path / "archive" / "20260101" / os.uname().machine
    place.mkdir(parents=True)
    _program(place / "runsc", GOOD)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Serving, directory=str(tmp_path / "archive"))) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        monkeypatch.setattr(gvisor, "ARCHIVE", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setattr(gvisor, "ORIGINS", (("gVisor's release archive", gvisor._from_archive),))
        yield asked
        server.shutdown()
        serving.join()


def test_a_release_that_the_operator_names_is_taken_if_it_has_the_checksum_that_was_given(
    tmp_path: Path, archive: list[str], step: Step
) -> None:
    right = hashlib.sha512(GOOD.encode()).hexdigest()
    with pytest.raises(HostUnsupported, match=f"the SHA-512 of 20260101 is {right}, and not the one that was given"):
        gvisor.acquire(tmp_path / "tools", step, env={}, release=f"20260101@sha512:{'0' * 128}")
    assert [path.name for path in (tmp_path / "tools").iterdir()] == []
    chosen = gvisor.acquire(tmp_path / "tools", step, env={}, release=f"20260101@sha512:{right}")
    assert (chosen.version, chosen.origin) == ("release-20260101.0", "gVisor's release archive")
    assert archive == [f"/20260101/{os.uname().machine}/runsc"] * 2


def test_without_a_checksum_nothing_is_fetched(tmp_path: Path, archive: list[str], step: Step) -> None:
    with pytest.raises(HostUnsupported, match=r"no release is named \(K8E_SANDBOX_GVISOR_RELEASE"):
        gvisor.acquire(tmp_path / "tools", step, env={})
    assert archive == []


def test_every_module_of_the_build_has_its_hash() -> None:
    required = re.findall(r"^require (\S+) (\S+)$", (gvisor.MODULE / "go.mod").read_text(), re.MULTILINE)
    assert required == [("gvisor.dev/gvisor", gvisor.PINNED)]
    sums = [line.split() for line in (gvisor.MODULE / "go.sum").read_text().splitlines()]
    assert all(re.fullmatch(r"h1:[A-Za-z0-9+/]{43}=", found) for _, _, found in sums)
    assert ["gvisor.dev/gvisor", gvisor.PINNED] in [line[:2] for line in sums]
