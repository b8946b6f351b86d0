"""Running Python through the agent is as starting `python3`, but for what the kernel fixed when its process began."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from k8e.wire.aio import Link
from tests.contract.programs import PROGRAMS, RESET, Program, Result, differences, plain_argv
from tests.support.agents import TIMEOUT_S, Finished, execute

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

_EVERY = 8


def result_of(done: Finished) -> Result:
    code = done.code if done.code is not None else 128 + done.exited["signal"]
    return Result(done.stdout, done.stderr, code)


@pytest.mark.timeout(300)
async def test_programs_behave_as_in_a_plain_interpreter(link: Link) -> None:
    async def run(program: Program) -> Result:
        await execute(link, shell=f"{RESET}; {program.setup or 'true'}")
        await link.call("ready", timeout_s=TIMEOUT_S)
        return result_of(await execute(link, language="python", code=program.code, env=dict(program.env)))

    async def plain(program: Program) -> Result:
        argv = list(plain_argv(program, uuid.uuid4().hex))
        return result_of(await execute(link, argv=argv, env=dict(program.env)))

    await link.call("ready", timeout_s=TIMEOUT_S)
    # All of them are compared in a sandbox (tests/contract); these show that nothing of a runtime is needed for it.
    assert await differences(PROGRAMS[::_EVERY], run, plain) == []


@pytest.mark.parametrize(
    ("code", "env", "is_parked"),
    [
        ("print(len(open('/proc/self/cmdline').read()))", {}, True),
        ("print(len(open('/proc/self/cmdline').read()))", {"MINE": "1"}, True),
        ("print(len(open('/proc/self/cmdline').read()))", {"PYTHONHASHSEED": "1"}, False),
        ("print(len(open('/proc/self/cmdline').read()))", {"LC_ALL": "C"}, False),
    ],
)
async def test_the_comparison_is_with_a_parked_interpreter(
    link: Link, code: str, env: dict[str, str], is_parked: bool
) -> None:
    """The control: the one stated difference, a padded command line, shows which way a program went."""
    await link.call("ready", timeout_s=TIMEOUT_S)
    done = await execute(link, language="python", code=code, env=env)
    assert (int(done.stdout) > 4096) is is_parked


async def test_programs_in_a_hurry_all_get_an_interpreter(link: Link) -> None:
    for number in range(10):
        done = await execute(link, language="python", code=f"print({number})")
        assert done.stdout == b"%d\n" % number


async def test_interpreters_wait_again_once_what_ended_them_is_gone(link: Link) -> None:
    async def is_parked() -> bool:
        done = await execute(link, language="python", code="print(len(open('/proc/self/cmdline').read()))")
        return int(done.stdout) > 4096

    breaks = "/opt/venv/lib/python3*/site-packages"
    await link.call("ready", timeout_s=TIMEOUT_S)
    assert await is_parked(), "the control"
    # It ends only those that are to wait, and not programs.
    line = "import os; 'K8E_PARK' in os.environ and os._exit(1)"
    await execute(link, shell=f'cd {breaks}; echo "{line}" > aaa_breaks.pth')
    assert not await is_parked()
    # Answered because it is clear by now that none will wait.
    await link.call("ready", timeout_s=TIMEOUT_S)
    assert not await is_parked()
    await execute(link, shell=f"cd {breaks}; rm aaa_breaks.pth")
    async with asyncio.timeout(TIMEOUT_S):
        while not await is_parked():
            pass
