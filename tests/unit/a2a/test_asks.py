"""A message is read for what it marks as code, and for nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import Message, Part, Role
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from hypothesis import given
from hypothesis import strategies as st

from k8e.a2a.asks import LANGUAGES, MAX_PARTS, Ask, Program, Unusable, Upload, read


def message(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.ROLE_USER, parts=parts)


def text(content: str) -> Part:
    return Part(text=content)


def data(content: Any) -> Part:
    return Part(data=ParseDict(content, Value()))


def programs(*parts: Part) -> list[tuple[str, str]]:
    ask = read(message(*parts))
    assert isinstance(ask, Ask), ask
    return [(program.language, program.code) for program in ask.programs]


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("```python\nprint(1)\n```", [("python", "print(1)\n")]),
        ("Please run this:\n\n```PY\nx = 1\n\nprint(x)\n```\nThank you!", [("python", "x = 1\n\nprint(x)\n")]),
        ("~~~js\nconsole.log(`1`)\n~~~", [("node", "console.log(`1`)\n")]),
        ("```bash\na\n```\nthen\n```typescript\nb\n```", [("bash", "a\n"), ("ts", "b\n")]),
        ("```\nls\n```", [("sh", "ls\n")]),
        ('It prints\n```json\n{"a": 1}\n```\nwhen given\n```sh\ncat a\n```', [("sh", "cat a\n")]),
        ("````python\n'''\n```\n'''\n````", [("python", "'''\n```\n'''\n")]),
        ("```python\r\nprint(1)\r\n```\r\n", [("python", "print(1)\n")]),
        ("$ ls -l", [("sh", "ls -l")]),
        ("$ cd /tmp\n\n$ ls", [("sh", "cd /tmp\nls")]),
    ],
)
def test_marked_code_is_what_runs(content: str, wanted: list[tuple[str, str]]) -> None:
    assert programs(text(content)) == wanted


@pytest.mark.parametrize(
    "content",
    [
        "",
        "rm -rf old files and tell me what is left",
        "ls -l",
        "$ ls\nis what I want",
        "use `ls -l` for it",
        "```text\nls\n```",
        "```\none\n```\nor\n```\nother\n```",
    ],
)
def test_prose_is_never_run_but_asked_about(content: str) -> None:
    found = read(message(text(content)))
    assert isinstance(found, Unusable)
    assert found.is_open
    assert "```python" in found.text


def test_a_program_that_was_cut_off_is_not_run() -> None:
    whole, cut = "```bash\nrm -rf /workspace/old\n```", "```bash\nrm -rf /workspace/"
    assert programs(text(whole)) == [("bash", "rm -rf /workspace/old\n")]
    found = read(message(text(cut)))
    assert isinstance(found, Unusable)
    assert not found.is_open


def test_a_part_may_say_itself_that_it_is_code() -> None:
    part = Part(text="print('```')")
    part.metadata.update({"language": "python"})
    assert programs(part) == [("python", "print('```')")]


def test_a_data_part_is_exact_and_text_beside_it_explains() -> None:
    exact = {"code": "print(1)", "language": "py", "timeout": 5, "workdir": "/tmp", "env": {"A": "b"}}
    found = read(message(text("```bash\nno\n```"), data(exact)))
    program = Program(code="print(1)", language="python", timeout_s=5.0, workdir="/tmp", env={"A": "b"})
    assert found == Ask(programs=(program,))
    assert programs(data({"command": "ls"})) == [("sh", "ls")]
    assert programs(data({"code": "1"})) == [("python", "1")]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([1], "object"),
        ("ls", "object"),
        ({}, "exactly one"),
        ({"code": "1", "command": "2"}, "exactly one"),
        ({"language": "python"}, "exactly one"),
        ({"code": ""}, "code"),
        ({"code": 1}, "code"),
        ({"command": ["ls"]}, "command"),
        ({"code": "1", "language": "cobol"}, "cobol"),
        ({"command": "ls", "language": "python"}, "language"),
        ({"code": "1", "timeout": 0}, "timeout"),
        ({"code": "1", "timeout": -1}, "timeout"),
        ({"code": "1", "timeout": 1e9}, "timeout"),
        ({"code": "1", "timeout": True}, "timeout"),
        ({"code": "1", "timeout": "5"}, "timeout"),
        ({"code": "1", "env": {"A": 1}}, "env"),
        ({"code": "1", "env": ["A"]}, "env"),
        ({"code": "1", "workdir": 1}, "workdir"),
        ({"code": "1", "tiemout": 5}, "tiemout"),
        ({"read": []}, "read"),
        ({"read": ["a"] * 65}, "read"),
        ({"read": "../../etc/passwd"}, "read"),
        ({"read": 1}, "read"),
    ],
)
def test_a_wrong_data_part_is_refused_by_name(content: Any, named: str) -> None:
    found = read(message(data(content), text("```python\nprint(1)\n```")))
    assert isinstance(found, Unusable)
    assert not found.is_open
    assert named in found.text


def test_files_are_written_first_and_alone_they_are_enough() -> None:
    part = Part(raw=b"\0\xff", filename="data/a.bin", media_type="application/octet-stream")
    upload = Upload(path="/workspace/data/a.bin", data=b"\0\xff")
    assert read(message(part)) == Ask(uploads=(upload,))
    found = read(message(text("```sh\nwc -c data/a.bin\n```"), part))
    assert isinstance(found, Ask)
    assert (found.uploads, len(found.programs)) == ((upload,), 1)


@pytest.mark.parametrize(
    "name",
    ["", "../a", "a/../../b", "/etc/passwd", "/workspace/../etc/passwd", "a\0b", "a\nb", "..", ".", "a/", "C:\\a"],
)
def test_a_file_goes_nowhere_but_below_the_workspace(name: str) -> None:
    found = read(message(Part(raw=b"x", filename=name)))
    assert isinstance(found, Unusable)
    assert "filename" in found.text


def test_an_address_is_not_fetched_for_anybody() -> None:
    found = read(message(Part(url="http://169.254.169.254/latest", filename="a"), text("$ cat a")))
    assert isinstance(found, Unusable)
    assert "url" in found.text


def test_what_is_given_back_is_named_one_by_one_or_as_a_list() -> None:
    assert read(message(data({"read": "a.csv"}))) == Ask(reads=("/workspace/a.csv",))
    assert read(message(data({"read": ["a", "/workspace/b/c"]}))) == Ask(reads=("/workspace/a", "/workspace/b/c"))


def test_too_many_parts_and_empty_ones_are_refused() -> None:
    assert isinstance(read(message(*[text("$ ls")] * MAX_PARTS)), Ask)
    assert isinstance(read(message(*[text("$ ls")] * (MAX_PARTS + 1))), Unusable)
    assert isinstance(read(message(Part(), text("$ ls"))), Unusable)
    twice = Part(raw=b"x", filename="a")
    assert isinstance(read(message(twice, twice)), Unusable)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["code", "command", "language", "timeout", "workdir", "env", "read", "other"]), inner
        )
    ),
    max_leaves=12,
)
any_part = (
    st.builds(text, st.text(st.characters(codec="utf-8")))
    | st.builds(data, json_values)
    | st.builds(Part, raw=st.binary(), filename=st.text(st.characters(codec="utf-8")))
)


@given(st.lists(any_part, max_size=6))
def test_whatever_comes_is_done_or_refused_with_a_word(parts: list[Part]) -> None:
    found = read(message(*parts))
    if isinstance(found, Unusable):
        assert found.text
    else:
        assert all(program.language in {"python", "node", "ts", "bash", "sh"} for program in found.programs)
        assert all(0 < program.timeout_s <= 3600 for program in found.programs)
        paths = [*(upload.path for upload in found.uploads), *found.reads]
        assert all(path.startswith("/workspace/") and ".." not in path.split("/") for path in paths)


@given(
    st.sampled_from(sorted(LANGUAGES)),
    st.text(st.characters(codec="utf-8", exclude_characters="\r")).filter(lambda code: "```" not in code),
)
def test_a_fenced_program_arrives_as_it_was_written(tag: str, code: str) -> None:
    assert programs(text(f"Look:\n```{tag}\n{code}\n```\n")) == [(LANGUAGES[tag], f"{code}\n")]
