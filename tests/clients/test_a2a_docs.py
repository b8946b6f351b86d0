"""docs/a2a.md is true: its examples are run in order against a real agent, and answer what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.a2a_peer import running
from tests.support.ports import lasting_port

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "a2a.md").read_text(encoding="utf-8")
ANSWER = r"\n\n```text\n((?:(?!```).*\n)*)```$"
SHELL = re.findall(r"^```sh\n((?:(?!```).*\n)*)```" + ANSWER, DOCUMENT, re.MULTILINE)
PYTHON = re.findall(r"^````python\n((?:(?!````).*\n)*)````" + ANSWER, DOCUMENT, re.MULTILINE)
INSTALLS = re.findall(r"^```sh\n(pip install .*\n)```$", DOCUMENT, re.MULTILINE)
BEGINS = re.findall(r"^```sh\n(k8e a2a &(?:(?!```).*\n)*)```$", DOCUMENT, re.MULTILINE)
BETWEEN = "=== the next example ==="
PORT = "8822"
SERVES = re.findall(r"^k8e a2a([^&#\n]*)", DOCUMENT, re.MULTILINE)
# The official client gives up after five seconds without a word; a busy machine may take longer to make a sandbox.
PATIENT = """\
import functools, httpx
httpx.AsyncClient.__init__ = functools.partialmethod(httpx.AsyncClient.__init__, timeout=60)
"""


def pattern(shown: str) -> str:
    """… stands for what differs from one time to the next."""
    return ".*?".join(map(re.escape, shown.strip().split("…")))


def test_the_page_has_examples_with_answers() -> None:
    assert (len(SHELL), len(PYTHON), len(SERVES), len(INSTALLS), len(BEGINS)) == (4, 1, 3, 1, 1)


def test_the_examples_answer_as_the_page_says(users_environ: dict[str, str], tmp_path: Path) -> None:
    """In one shell; the program in an environment that has what the page says and nothing else."""
    (program, printed), (install,), (begin,) = PYTHON[0], INSTALLS, BEGINS
    (tmp_path / "program.py").write_text(PATIENT + program)
    venv = f"python3 -m venv {tmp_path}/venv; . {tmp_path}/venv/bin/activate; PIP_QUIET=1 {install.strip()}"
    steps = [*(example for example, _ in SHELL), f"{venv}; python {tmp_path}/program.py"]
    # The page's port may be somebody's on this machine.
    with lasting_port() as port:
        assert PORT in begin
        serve = begin.replace("k8e a2a &", f"k8e a2a --addr 127.0.0.1:{port} 2>&1 &").replace(PORT, str(port))
        script = f"\necho '{BETWEEN}'\n".join([f"trap 'kill %1; wait' EXIT\n{serve}", *steps])
        done = subprocess.run(
            ["bash", "-ec", script], env=users_environ, capture_output=True, text=True, check=False, timeout=200
        )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    told = done.stdout.split(f"{BETWEEN}\n")[1:]
    for text, shown in zip(told, [*(shown for _, shown in SHELL), printed], strict=True):
        assert re.fullmatch(pattern(shown), text.strip(), re.DOTALL), f"printed\n{text}\nand not\n{shown}"


@pytest.mark.parametrize("flags", SERVES)
def test_every_command_that_the_page_names_starts(environ: dict[str, str], flags: str) -> None:
    # At an address that is free here; everything else as it stands there.
    with running(environ, *flags.replace("--addr 0.0.0.0:8822", "").split()) as agent:
        assert agent.stop() == 0
