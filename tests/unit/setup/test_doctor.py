"""The doctor's report, and that its probes tell a working host from a broken one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from k8e.setup import checks, doctor
from k8e.setup.checks import Check
from k8e.setup.doctor import Diagnosis, as_json, as_text
from k8e.setup.report import Silent

GOOD = Check(name="kernel", ok=True, detail="6.18", fix="boot another")
BAD = Check(name="gvisor", ok=False, detail="not set up", fix="k8e doctor --fix")


def test_the_json_has_the_published_shape_and_a_fix_only_where_needed() -> None:
    report = json.loads(as_json(Diagnosis(checks=(GOOD, BAD))))
    assert report == {
        "ok": False,
        "problems": 1,
        "fixed": 0,
        "checks": [
            {"name": "kernel", "ok": True, "detail": "6.18"},
            {"name": "gvisor", "ok": False, "detail": "not set up", "fix": "k8e doctor --fix"},
        ],
    }


def test_the_text_shows_each_check_and_the_fix() -> None:
    text = as_text(Diagnosis(checks=(GOOD, BAD)))
    assert "ok  kernel: 6.18" in text
    assert "→ k8e doctor --fix" in text
    assert text.endswith("1 problem")


def test_what_nothing_needs_is_told_and_no_problem() -> None:
    diagnosis = Diagnosis(checks=(GOOD, Check(name="kata", ok=False, detail="none", fix="wait", is_optional=True)))
    report = json.loads(as_json(diagnosis))
    assert (report["ok"], report["problems"]) == (True, 0)
    assert report["checks"][1] == {"name": "kata", "ok": False, "detail": "none", "optional": True, "fix": "wait"}
    assert as_text(diagnosis).splitlines()[1:] == ["--  kata: none", "    → wait", "everything works"]


def test_what_was_mended_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mended = tmp_path / "mended"
    monkeypatch.setattr(doctor, "probes", lambda _: (lambda: Check(name="x", ok=mended.exists(), detail=""),))
    monkeypatch.setattr(doctor, "ensure", lambda *_, **__: mended.touch())
    before = doctor.diagnose(tmp_path, fix=False, report=Silent(), env={})
    assert (before.ok, before.fixed) == (False, ())
    after = doctor.diagnose(tmp_path, fix=True, report=Silent(), env={})
    assert (after.ok, after.fixed) == (True, ("x",))


def test_more_probes_can_be_plugged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "probes", lambda _: ())
    assert doctor.examine(tmp_path, [lambda: BAD]).problems == (BAD,)


def test_every_probe_answers_on_a_bare_data_directory(tmp_path: Path) -> None:
    found = {check.name: check for check in doctor.examine(tmp_path).checks}
    assert not found["gvisor"].ok
    assert "--fix" in found["gvisor"].fix
    assert found["agent bundle"].ok
    assert all(check.fix for check in found.values() if not check.ok)
    for name, program in (("kata", "kata-runtime"), ("firecracker", "jailer")):
        assert (found[name].ok, found[name].is_optional) == (False, True)
        for part in ("not built into this version", "/dev/kvm: ", f"{program}: "):
            assert part in found[name].detail
        assert program in found[name].fix


def test_a_microvm_says_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "firecracker"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    detail = checks._microvm("firecracker", ("firecracker", "no-such-jailer")).detail
    assert f"firecracker: {program}; no-such-jailer: not found" in detail


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is taken on")
def test_container_sandboxes_need_a_setpriv_and_a_prlimit_that_know_their_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checks._util_linux().ok
    other = tmp_path / "setpriv"
    other.write_text("#!/bin/sh\necho 'unknown option --ambient-caps' >&2; exit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "unknown option" in checks._util_linux().detail
    monkeypatch.setenv("PATH", "/nowhere")
    missing = checks._util_linux()
    assert not missing.ok
    assert "util-linux" in missing.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mounts")
def test_a_probe_sees_what_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks._overlay().ok
    monkeypatch.setattr(checks, "_OVERLAY", checks._OVERLAY.replace("-t overlay", "-t nosuchfilesystem"))
    assert not checks._overlay().ok
