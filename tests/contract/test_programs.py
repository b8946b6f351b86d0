"""Running Python in a sandbox is as starting `python3` there, but for what the kernel fixed when its process began.

On every runtime.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Awaitable
from typing import Any

import pytest

from k8e.model import ExecResult, Runtime
from tests.contract.programs import PROGRAMS, RESET, Program, Result, differences, normal, plain_argv
from tests.support.cells import Cell

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.not_bare]

_PARTS = 4
_EVERY_IN_GVISOR = 3
"""Of the programs; a container compares all. `--every-program` compares all here, too, which takes a minute more."""
_PATIENCE_S = 60.0
_TIMEOUT_S = 60.0
_PARKED = "print('K8E_PARK' in open('/proc/self/environ').read())"
"""The environment at exec, which only a parked interpreter's hook has read: who served this program?"""


def _result(done: ExecResult) -> Result:
    return Result(done.stdout, done.stderr, done.outcome.exit_code)


async def _assert_parked(cell: Cell) -> None:
    """The control: in the rhythm of the comparison, programs of both forms are served by parked interpreters."""
    for code in (_PARKED, f"pass\n{_PARKED}"):
        # A session that was not warm has to start its first interpreters while it is already in use.
        deadline = time.monotonic() + _PATIENCE_S
        await cell.sh(RESET)
        while (await cell.py(code)).stdout != b"True\n":
            assert time.monotonic() < deadline, "no parked interpreter served any of the programs"
            await cell.sh(RESET)
    assert (await cell.argv("python3", "-c", _PARKED)).stdout == b"False\n"


def test_the_table_is_large_and_has_both_forms() -> None:
    assert len(PROGRAMS) >= 400
    assert {program.is_inline for program in PROGRAMS} == {True, False}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(_PARTS))
async def test_programs_behave_as_in_a_plain_interpreter(
    cell: Cell, runtime: Runtime, part: int, pytestconfig: pytest.Config
) -> None:
    programs = PROGRAMS[part::_PARTS]
    if runtime is Runtime.GVISOR and not pytestconfig.getoption("--every-program"):
        programs = programs[::_EVERY_IN_GVISOR]

    async def run(program: Program) -> Result:
        await cell.sh(f"{RESET}; {program.setup or 'true'}")
        return _result(await cell.py(program.code, env=dict(program.env), timeout_s=_TIMEOUT_S))

    async def plain(program: Program) -> Result:
        argv = plain_argv(program, uuid.uuid4().hex)
        return _result(await cell.argv(*argv, env=dict(program.env), timeout_s=_TIMEOUT_S))

    await _assert_parked(cell)
    assert await differences(programs, run, plain) == []
    await _assert_parked(cell)


_LOOK = """
import json, os, subprocess, sys, time
def look(name):
    path = "/proc/self/" + name
    if os.path.islink(path):
        return os.readlink(path)
    with open(path, "rb") as file:
        return file.read().decode("latin-1")
status = dict(line.split(":", 1) for line in look("status").splitlines())
child = subprocess.run(["cat", "/proc/self/environ"], capture_output=True, check=True).stdout.decode()
print(json.dumps({
    **{name: look(name) for name in ("cmdline", "environ", "comm", "cwd", "exe", "root", "cgroup", "limits", "oom_score_adj")},
    **{name: look("ns/" + name) for name in sorted(os.listdir("/proc/self/ns"))},
    **{name: status[name] for name in status if name.startswith(("Sig", "Cap", "Uid", "Gid", "Groups", "Umask", "Threads", "NoNew", "Seccomp"))},
    "descriptors": sorted(os.listdir("/proc/self/fd")), "python": dict(os.environ), "argv": sys.argv, "child": child,
    "began": int(look("stat").rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK"),
    "now": time.clock_gettime(time.CLOCK_BOOTTIME),
}))
"""
"""What a process can read of itself, but for sizes, times and addresses, which no two processes have in common."""


@pytest.mark.parametrize("is_inline", [True, False], ids=["one line", "file"])
async def test_what_the_kernel_fixed_at_the_start_is_all_that_differs(cell: Cell, is_inline: bool) -> None:
    code = f"exec({_LOOK!r})" if is_inline else _LOOK
    env = {"MINE": "given"}
    await _assert_parked(cell)
    deadline = time.monotonic() + _PATIENCE_S
    while "K8E_PARK=" not in (parked := await _looked(cell.py(code, env=env)))["environ"]:
        assert time.monotonic() < deadline, "no parked interpreter served it"
    path = f"/workspace/.k8e-{'0' * 16}.py"
    await cell.write(path, code.encode())
    argv = ("python3", "-c", code) if is_inline else ("python3", path)
    plain = await _looked(cell.argv(*argv, env=env))
    assert {name for name in parked if parked[name] != plain[name]} == {"environ", "began", "now"} | (
        {"cmdline"} if is_inline else set()
    )
    assert "MINE=given" not in parked["environ"]
    assert "MINE=given" in parked["child"]
    assert plain["environ"] == plain["child"]
    assert parked["cmdline"].rstrip("\0") == plain["cmdline"].rstrip("\0")
    assert parked["began"] <= plain["began"]


async def _looked(running: Awaitable[ExecResult]) -> dict[str, Any]:
    done = await running
    assert done.outcome.exit_code == 0, done.stderr
    found = json.loads(normal(done.stdout))
    assert isinstance(found, dict)
    return found


_INPUT_PROGRAMS = (
    "print(input(), repr(sys.stdin), sys.stdin.mode, sys.stdin.encoding, sys.stdin.errors, sys.stdin.newlines)",
    "print(sys.stdin.seekable(), sys.stdin.isatty(), sys.stdin is sys.__stdin__, sys.stdin.buffer.raw.closefd)",
    "print(stat.S_ISFIFO(os.fstat(0).st_mode), sorted(os.listdir('/proc/self/fd'))[:3], os.get_inheritable(0))",
    "print(sys.stdin.buffer.read(), sys.stdin.read())",
    "os.system('cat')",
)


async def test_a_parked_interpreter_has_its_input_as_a_plain_one(cell: Cell) -> None:
    for each in _INPUT_PROGRAMS:
        code = f"import os, stat, sys; {each}"
        parked = await cell.py(code, stdin=b"one\ntwo\n")
        plain = await cell.argv("python3", "-c", code, stdin=b"one\ntwo\n")
        assert (parked.stdout, parked.stderr) == (plain.stdout, plain.stderr), each
        assert parked.stdout
    await _assert_parked(cell)
    assert (await cell.py(_PARKED, stdin=b"x")).stdout == b"True\n"
