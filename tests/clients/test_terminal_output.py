"""At a terminal nothing that came from inside a sandbox steers it, in any command; a pipe gets every byte as it was."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess

import pytest

from k8e.client import SandboxClient
from tests.support.commands import K8E, Run

HOSTILE = b"\x1b]52;c;aGVsbG8=\x07\x1b[2J\x9b31m\xc2\x9b31m\x7f\x08\xe2\x80\xae\xe2\x80\xa8\rfake\n"
"""The clipboard, a clear screen, colours by C1 in both spellings, deletes, an override of direction, a line written over."""
TEXT = HOSTILE.replace(b"J\x9b31m", b"J")
"""The part of it that is UTF-8."""
NAME = "na\x1b[2Jme\u202e\u009b"


@pytest.fixture
def session(client: SandboxClient, tidy: None) -> str:
    made = client.create_session("container")
    client.write_file(made, "hostile", HOSTILE)
    client.write_file(made, "text", TEXT)
    client.write_file(made, NAME, b"")
    return made


def at_a_terminal(environ: dict[str, str], *words: str, **extra: str) -> bytes:
    """All that a person's terminal was sent."""
    master, slave = pty.openpty()
    argv = [str(K8E), "sandbox", *words]
    with subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, env=environ | extra, start_new_session=True
    ) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the last one who had it open is gone
            while piece := os.read(master, 65536):
                shown += piece
        os.close(master)
        assert process.wait(60) in (0, 1, 127)
    return shown.replace(b"\r\n", b"\n")


def steers(shown: bytes) -> bool:
    return not shown.decode("utf-8").replace("\n", "").replace("\t", "").isprintable()


def test_no_command_lets_what_is_inside_steer_the_terminal(environ: dict[str, str], k8e: Run, session: str) -> None:
    write = f"import sys; sys.stdout.buffer.write({HOSTILE!r})"
    run = ["run", "--session-id", session, "--lang", "python"]
    shown = {
        "run": at_a_terminal(environ, *run, write),
        "run --raw": at_a_terminal(environ, *run, "--raw", write),
        "run --raw, standard error": at_a_terminal(environ, *run, "--raw", write.replace("stdout", "stderr")),
        "read": at_a_terminal(environ, "read", session, "text"),
        "read --raw": at_a_terminal(environ, "read", session, "hostile", "--raw"),
        "list": at_a_terminal(environ, "list", session),
        "list, table": at_a_terminal(environ, "list", session, "--output", "table"),
        "log": at_a_terminal(environ, "log", session),
        "events": at_a_terminal(environ, "events", session),
        "an error": at_a_terminal(environ, "read", session, f"{NAME}-none"),
        "an error of raw": at_a_terminal(environ, "read", session, f"{NAME}-none", "--raw"),
        "a program that is not there": at_a_terminal(environ, "run", "--session-id", session, "--raw", f"'{NAME}'"),
    }
    assert {name: text for name, text in shown.items() if steers(text) or not text} == {}
    assert rb"\x1b]52;c;aGVsbG8=\x07\x1b[2J" in shown["run --raw"], "they are shown, not lost"
    assert at_a_terminal(environ, *run, "--raw", r"import os; os.write(1, b'half\xe2\x80')") == rb"half\xe2\x80"
    assert json.loads(shown["run"])["stdout"] == HOSTILE.decode("utf-8", "replace")
    assert json.loads(shown["read"])["content"] == TEXT.decode()
    # Control: whoever is no terminal gets the program's own bytes.
    assert k8e("sandbox", *run, "--raw", write).stdout == HOSTILE
    assert k8e("sandbox", "read", session, "hostile", "--raw").stdout == HOSTILE
    assert b"\x1b[2J" in k8e("sandbox", "log", session).stdout


def test_json_has_no_character_that_steers_also_in_a_pipe(k8e: Run, session: str) -> None:
    done = k8e("sandbox", "read", session, "text")
    assert not steers(done.stdout)
    assert json.loads(done.stdout)["content"] == TEXT.decode()


def test_a_terminal_that_takes_single_bytes_gets_ascii(environ: dict[str, str], session: str) -> None:
    """The second byte of many a character would be a control there."""
    extra = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "latin-1"}
    for words in (["read", session, "text"], ["list", session], ["read", session, "hostile", "--raw"]):
        assert at_a_terminal(environ, *words, **extra).isascii()
