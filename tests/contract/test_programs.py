"""Running Python in a sandbox cannot be told from starting `python3` there, on every runtime."""

from __future__ import annotations

import time
import uuid

import pytest

from k8e.model import ExecResult
from tests.contract.programs import PROGRAMS, RESET, Program, Result, differences, plain_argv
from tests.support.cells import Cell

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

_PARTS = 4
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
async def test_no_program_can_tell_how_its_interpreter_was_started(cell: Cell, part: int) -> None:
    async def run(program: Program) -> Result:
        await cell.sh(f"{RESET}; {program.setup or 'true'}")
        return _result(await cell.py(program.code, env=dict(program.env), timeout_s=_TIMEOUT_S))

    async def plain(program: Program) -> Result:
        argv = plain_argv(program, uuid.uuid4().hex)
        return _result(await cell.argv(*argv, env=dict(program.env), timeout_s=_TIMEOUT_S))

    await _assert_parked(cell)
    assert await differences(PROGRAMS[part::_PARTS], run, plain) == []
    await _assert_parked(cell)
