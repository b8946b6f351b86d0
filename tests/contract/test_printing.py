"""What a Python program prints arrives line by line, however it is started, and a time-out loses none of it."""

from __future__ import annotations

import pytest

from k8e.engine.process_stream import Output
from k8e.model import MIB, Argv, Code, Command, Language, Limits, Runtime, Status
from tests.support.cells import OWNER, Cell, CellFactory

pytestmark = [pytest.mark.anyio, pytest.mark.not_bare]

_WAITS = "import os, time\nprint('first')\nwhile not os.path.exists('/workspace/go'): time.sleep(0.01)\nprint('second')"


def _started(how: str, code: str) -> Command:
    if how == "argv":
        return Command(what=Argv(("python3", "-c", code)), timeout_s=60.0)
    return Command(what=Code(Language.PYTHON, code), timeout_s=60.0)


@pytest.mark.parametrize("how", ["code", "argv"])
async def test_a_line_arrives_while_the_program_goes_on(cell: Cell, how: str) -> None:
    stream = await cell.engine.open_exec(OWNER, cell.id, _started(how, _WAITS))
    try:
        items = aiter(stream)
        first = await anext(items)
        assert isinstance(first, Output)
        assert first.payload == b"first\n"
        await cell.write("go", b"")
        second = await anext(items)
        assert isinstance(second, Output)
        assert second.payload == b"second\n"
    finally:
        await stream.close()
        await cell.sh("rm go")


@pytest.mark.parametrize("lines", [3, 2000])
async def test_what_was_printed_before_a_time_out_is_returned(cell: Cell, lines: int) -> None:
    done = await cell.py(f"import time\nfor i in range({lines}): print(i)\ntime.sleep(600)", timeout_s=3.0)
    assert done.outcome.status is Status.TIMED_OUT
    assert done.stdout == "".join(f"{n}\n" for n in range(lines)).encode()


async def test_a_million_lines_arrive_in_order_and_whole(cells: CellFactory) -> None:
    async with cells(Runtime.GVISOR, limits=Limits(output_bytes=16 * MIB)) as cell:
        done = await cell.py("for i in range(1_000_000): print(i)", timeout_s=60.0)
        assert done.stdout == "".join(f"{n}\n" for n in range(1_000_000)).encode()


@pytest.mark.parametrize("lines", [1, 500])
async def test_other_processes_print_after_what_was_printed_before_them(cell: Cell, lines: int) -> None:
    code = (
        f"import os, subprocess\nfor i in range({lines}): print('line', i)\n"
        "subprocess.run(['echo', 'program'])\n"
        f"for i in range({lines}): print('more', i)\n"
        "if not os.fork():\n    print('child')\n    raise SystemExit\nos.wait()\nprint('parent')"
    )
    wanted = [
        *(f"line {n}" for n in range(lines)),
        "program",
        *(f"more {n}" for n in range(lines)),
        "child",
        "parent",
    ]
    assert (await cell.py(code)).stdout.decode().splitlines() == wanted


async def test_a_reader_that_leaves_is_met_as_ever(cell: Cell) -> None:
    done = await cell.sh("python3 -c 'for i in range(100000): print(i)' | head -n 1")
    assert done.stdout == b"0\n"
    assert b"BrokenPipeError" in done.stderr
    assert b"Fatal" not in done.stderr


async def test_flags_and_environment_show_nothing_of_it_and_both_still_work(cell: Cell) -> None:
    flags = "import sys; print(str(sys.flags).replace('no_site=1', 'no_site=0'))"
    # Without `site` nothing of ours runs.
    assert (await cell.py(flags)).stdout == (await cell.argv("python3", "-S", "-c", flags)).stdout != b""
    variables = "import os; print([n for n in os.environ if n.startswith(('PYTHON', 'K8E'))])"
    assert (await cell.py(variables)).stdout == b"[]\n"
    done = await cell.argv("python3", "-u", "-c", "import sys; print(sys.stdout.write_through)")
    assert done.stdout == b"True\n"


async def test_what_is_printed_at_the_very_end_is_not_lost(cell: Cell) -> None:
    code = "import atexit\nprint_all = lambda: [print('end', i) for i in range(500)]\natexit.register(print_all)\nprint_all()"
    assert (await cell.py(code)).stdout.decode().splitlines() == [f"end {n}" for n in range(500)] * 2


async def test_a_program_that_has_chosen_otherwise_keeps_its_choice(cell: Cell) -> None:
    code = (
        "import sys\nsys.stdout.reconfigure(write_through=True)\nfor i in range(500): print(i)\n"
        "print(sys.stdout.write_through, file=sys.stderr)"
    )
    assert (await cell.py(code)).stderr == b"True\n"


async def test_an_output_that_is_taken_apart_does_not_stop_programs_from_being_started(cell: Cell) -> None:
    code = (
        "import io, subprocess, sys\nfor i in range(500): print(i)\n"
        "sys.stdout = io.TextIOWrapper(sys.stdout.detach())\nsubprocess.run(['echo', 'program'], check=True)"
    )
    done = await cell.py(code)
    assert (done.outcome.exit_code, done.stdout.splitlines()[-1]) == (0, b"program")
