"""`k8e secret …` as whole processes, and the flags that refer to secrets."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from k8e.cli.secrets import brokered, reference
from k8e.client.errors import InvalidRequest

PATIENCE_S = 60.0

Run = Callable[..., "tuple[int, dict[str, object]]"]


@pytest.fixture
def k8e(environ: dict[str, str]) -> Run:
    def run(*words: str, stdin: bytes = b"") -> tuple[int, dict[str, object]]:
        argv = [sys.executable, "-m", "k8e.cli.main", *words]
        done = subprocess.run(argv, input=stdin, capture_output=True, env=environ, timeout=60, check=False)
        return done.returncode, json.loads(done.stdout)

    return run


def used(k8e: Run, reference_: str) -> object:
    """What a command sees of a secret."""
    _, created = k8e("sandbox", "create", "--secret", f"X={reference_}")
    _, answer = k8e("sandbox", "run", "--session-id", str(created["session_id"]), 'printf %s "$X"')
    return answer["stdout"]


def test_a_value_from_standard_input_loses_the_newline_of_echo(k8e: Run) -> None:
    assert k8e("secret", "set", "piped:key", stdin=b"a value\n") == (0, {"ok": True, "name": "piped", "key": "key"})
    assert used(k8e, "piped:key") == "a value"


def test_a_value_from_a_file_is_exact(k8e: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"two\nlines\n")
    assert k8e("secret", "set", "filed", "--from-file", str(tmp_path / "file"))[0] == 0
    assert used(k8e, "filed") == "two\nlines\n"


def test_a_typed_value_is_not_echoed(k8e: Run, environ: dict[str, str]) -> None:
    master, slave = pty.openpty()
    argv = [sys.executable, "-m", "k8e.cli.main", "secret", "set", "typed"]
    process = subprocess.Popen(
        argv, stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=environ, start_new_session=True
    )
    os.close(slave)
    shown = b""
    while b"value of typed: " not in shown:
        shown += os.read(master, 1024)
    os.write(master, b"unseen\n")
    out, _ = process.communicate(timeout=60)
    os.set_blocking(master, False)
    with contextlib.suppress(OSError):  # a terminal whose other end is closed
        shown += os.read(master, 1024)
    os.close(master)
    assert json.loads(out)["ok"] is True
    assert b"unseen" not in shown + out
    assert used(k8e, "typed") == "unseen"


def test_the_list_has_names_and_no_value(k8e: Run) -> None:
    k8e("secret", "set", "listed:a", stdin=b"never-shown")
    k8e("secret", "set", "listed:b", stdin=b"never-shown")
    code, told = k8e("secret", "list")
    assert code == 0
    assert isinstance(told["secrets"], list)
    (listed,) = [each for each in told["secrets"] if each["name"] == "listed"]
    assert (list(listed), listed["keys"]) == (["name", "keys", "updated_at"], ["a", "b"])
    assert abs(listed["updated_at"] - time.time()) < PATIENCE_S
    assert "never-shown" not in json.dumps(told)


def test_what_is_not_there_cannot_be_deleted(k8e: Run) -> None:
    k8e("secret", "set", "doomed", stdin=b"x")
    assert k8e("secret", "delete", "doomed") == (0, {"ok": True, "name": "doomed"})
    code, told = k8e("secret", "delete", "doomed")
    assert (code, told["error"], told["ok"]) == (1, "not found", False)


def test_references_are_read_as_they_are_documented() -> None:
    assert reference("A=name:key") == {"env_var": "A", "secret_name": "name", "key": "key"}
    assert reference("A=name") == {"env_var": "A", "secret_name": "name", "key": "value"}
    assert brokered("A=name:key@api.example") == {
        "env_var": "A",
        "secret_name": "name",
        "key": "key",
        "host": "api.example",
        "header": "authorization",
    }
    assert brokered("A=name@api.example/X-Api-Key")["header"] == "X-Api-Key"


@pytest.mark.parametrize("text", ["A", "A=", "=name:key", "A=n:k:l", "A=n@h", ""])
def test_a_reference_that_is_none_is_told(text: str) -> None:
    with pytest.raises(InvalidRequest):
        reference(text)


@pytest.mark.parametrize("text", ["A=n:k", "A=n:k@", "A=n:k@h/", "A=n:k@h/x/y", "A=n:k@h@i", ""])
def test_a_brokered_reference_that_is_none_is_told(text: str) -> None:
    with pytest.raises(InvalidRequest):
        brokered(text)
