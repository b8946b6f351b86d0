"""What a run wrote and how it ended, in bounds and in words."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from k8e.a2a.harvest import FILE_BYTES, FILES, FILES_BYTES, Harvest, file_artifact, seen
from k8e.a2a.results import is_success, result_artifact, told
from k8e.client.values import EgressDenial, Exit, FileInfo


def file(name: str, size: int = 1, modified: float = 1.0, kind: str = "file") -> FileInfo:
    return FileInfo(path=f"/workspace/{name}", type=kind, size=size, modified=modified)


def test_new_and_changed_files_are_found_and_others_not() -> None:
    before = seen([file("same"), file("grown"), file("touched"), file("gone")])
    after = [file("same"), file("grown", 2), file("touched", modified=2.0), file("new"), file("dir", kind="dir")]
    after += [file("link", kind="symlink"), file(".hidden"), file("__pycache__/a.pyc")]
    harvest = Harvest.of(before, after)
    assert harvest.attached == tuple(f"/workspace/{name}" for name in ("grown", "new", "touched"))


@given(st.lists(st.integers(0, FILES_BYTES), max_size=40))
def test_what_is_attached_stays_within_bounds_and_the_rest_is_named(sizes: list[int]) -> None:
    after = [file(f"{number:02}", size) for number, size in enumerate(sizes)]
    harvest = Harvest.of({}, after)
    attached = [each.size for each in after if each.path in harvest.attached]
    assert len(attached) <= FILES
    assert sum(attached) <= FILES_BYTES
    assert max(attached, default=0) <= FILE_BYTES
    assert len(harvest.written) == len(sizes)


def test_a_workspace_full_of_files_is_named_in_part_and_counted() -> None:
    harvest = Harvest.of({}, [file(f"{number:04}") for number in range(1000)])
    assert (len(harvest.written), harvest.unlisted, len(harvest.attached)) == (100, 900, FILES)


def test_a_name_that_is_no_text_still_makes_an_artifact() -> None:
    made = file_artifact("/workspace/\udcff.png", b"x")
    assert (made.name, made.parts[0].media_type) == ("\ufffd.png", "image/png")


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        (Exit(exit_code=0, status="completed"), ""),
        (Exit(exit_code=3, status="completed"), "exit code 3"),
        (Exit(exit_code=124, status="timed_out"), "timed out after 5 s; everything it had started was killed"),
        (Exit(exit_code=137, status="failed", reason="oom_killed", detail="512 MiB"), "oom killed: 512 MiB"),
        (
            Exit(exit_code=1, status="completed", egress_denied=(EgressDenial(host="example.com", port=443),)),
            "exit code 1; the network's rules did not let it reach example.com",
        ),
    ],
)
def test_a_failure_says_why(end: Exit, wanted: str) -> None:
    assert told(end, timeout_s=5.0) == wanted
    assert is_success(end) is (wanted == "")


def test_a_result_says_what_programs_need_and_nothing_empty() -> None:
    def shown(end: Exit | None, **fields: Any) -> Any:
        given: dict[str, Any] = {
            "is_recreated": False,
            "is_cut": False,
            "uploads": [],
            "harvest": Harvest(),
            "steps": (1, 1),
        } | fields
        return MessageToDict(result_artifact(end, session_id="s", **given).parts[0].data)

    plain = shown(Exit(exit_code=0, status="completed", duration_ms=7))
    assert plain == {"session_id": "s", "exit_code": 0, "status": "completed", "duration_ms": 7, "truncated": False}
    assert shown(None, uploads=["/workspace/a"], steps=(0, 0)) == {"session_id": "s", "uploaded": ["/workspace/a"]}
    denied = Exit(exit_code=1, status="failed", egress_denied=(EgressDenial(host="a.example", reason="not listed"),))
    full = shown(denied, is_cut=True, is_recreated=True, steps=(1, 2), harvest=Harvest.of({}, [file("a")]))
    assert full["egress_denied"] == [{"host": "a.example", "port": 0, "reason": "not listed"}]
    assert full["files"] == [{"path": "/workspace/a", "size": 1, "attached": True}]
    assert (full["truncated"], full["session_recreated"], full["step"], full["steps"]) == (True, True, 1, 2)
