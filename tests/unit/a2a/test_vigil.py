"""A task names the question that is about its own call, as the server asks it, and no other one of its session."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.a2a.asks import Program, Upload
from k8e.a2a.vigil import is_about
from k8e.engine.questions import FoundProgram, command_question, file_question, write_question
from k8e.model import Code, Command, Language, Shell

texts = st.text(max_size=900) | st.sampled_from(["x" * 600, "x" * 601, "é" * 300, "é" * 301, "a\nb", "a\\nb", "a\x00b"])


def asked(code: str, language: str) -> str:
    what = Shell(code) if language == "sh" else Code(language=Language(language), text=code)
    return command_question(Command(what=what), FoundProgram("/bin/sh", "/bin/sh"), gates=["a pattern"], spans=[(0, 1)])


def written(path: str, data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    return write_question(path, (), size=len(data), sha256=sha256, append=False, perm=None)


@given(texts, st.sampled_from(["sh", "python"]))
def test_a_program_is_known_by_the_servers_question_about_it(code: str, language: str) -> None:
    assert is_about(asked(code, language), Program(code=code, language=language))


@pytest.mark.parametrize("size", [4, 5000])
def test_another_program_of_the_same_session_is_not_taken_for_it(size: int) -> None:
    mine, other = "deploy" + "x" * size, "deploy" + "y" * size
    program = Program(code=mine, language="sh")
    assert is_about(asked(mine, "sh"), program)
    assert not is_about(asked(other, "sh"), program)
    assert not is_about(written("deploy", mine.encode()), program)
    assert not is_about(file_question("remove", [mine], ()), program)


@given(st.binary(max_size=50))
def test_a_file_is_known_by_its_content(data: bytes) -> None:
    upload = Upload(path="/workspace/a", data=data)
    assert is_about(written("/workspace/a", data), upload)
    assert not is_about(written("/workspace/a", data + b"x"), upload)
    assert not is_about(asked(hashlib.sha256(data).hexdigest(), "sh"), upload)
