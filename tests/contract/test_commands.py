"""Commands, on every runtime: true exit codes, separate streams, nothing lost, nothing left running."""

from __future__ import annotations

import asyncio

import pytest

from k8e.engine.process_stream import Output
from k8e.errors import InvalidSpec, NotFound
from k8e.model import Argv, Code, Command, Language, Outcome, OwnerId, Reason, Shell, Status
from tests.support.cells import OWNER, Cell

pytestmark = pytest.mark.anyio


@pytest.mark.shares_sandbox
@pytest.mark.parametrize("code", [0, 1, 2, 77, 255])
async def test_exit_codes_are_true(cell: Cell, code: int) -> None:
    result = await cell.sh(f"exit {code}")
    assert (result.outcome.status, result.outcome.exit_code) == (Status.COMPLETED, code)


@pytest.mark.shares_sandbox
@pytest.mark.parametrize("signal", [1, 9, 11, 15])
async def test_a_signal_death_is_128_plus_the_signal(cell: Cell, signal: int) -> None:
    result = await cell.sh(f"kill -{signal} $$")
    assert (result.outcome.exit_code, result.outcome.signal) == (128 + signal, signal)


@pytest.mark.shares_sandbox
async def test_both_streams_arrive_apart_and_byte_for_byte(cell: Cell) -> None:
    result = await cell.py(
        "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stderr.buffer.write(b'\\xff\\x00')"
    )
    assert result.stdout == bytes(range(256))
    assert result.stderr == b"\xff\x00"


@pytest.mark.shares_sandbox
async def test_a_flood_on_stderr_does_not_block_stdout(cell: Cell) -> None:
    result = await cell.sh("head -c 300000 /dev/zero >&2; echo out")
    assert (len(result.stderr), result.stdout) == (300_000, b"out\n")


@pytest.mark.shares_sandbox
async def test_argv_is_not_touched_by_any_shell(cell: Cell) -> None:
    odd = ["$HOME", "`id`", "a b", "'", '"', "*", "\n", "", "caf\u00e9", "\udcff"]
    result = await cell.argv("python3", "-c", "import sys, os; print([os.fsencode(a) for a in sys.argv[1:]])", *odd)
    assert result.stdout.decode() == f"{[item.encode('utf-8', 'surrogateescape') for item in odd]}\n"


@pytest.mark.shares_sandbox
async def test_code_arrives_byte_for_byte(cell: Cell) -> None:
    result = await cell.py("print('$HOME `id` \"quoted\" \\\\ %s')")
    assert result.stdout == b'$HOME `id` "quoted" \\ %s\n'


@pytest.mark.shares_sandbox
async def test_standard_input_is_fed_and_closed(cell: Cell) -> None:
    data = bytes(range(256)) * 4096
    result = await cell.sh("cat | sha256sum", stdin=data)
    import hashlib

    assert result.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


@pytest.mark.shares_sandbox
async def test_without_input_a_command_reads_end_of_file(cell: Cell) -> None:
    assert (await cell.sh("cat; echo end")).stdout == b"end\n"


@pytest.mark.not_bare
@pytest.mark.shares_sandbox
async def test_environment_directory_and_user_are_given(cell: Cell) -> None:
    result = await cell.sh('echo "$GREETING $PWD $(id -u)"', env={"GREETING": "hi"}, cwd="/tmp", user="1234:1234")
    assert result.stdout == b"hi /tmp 1234\n"


@pytest.mark.not_bare
@pytest.mark.shares_sandbox
@pytest.mark.parametrize(("user", "text"), [("nosuch", "nosuch is not in /etc/passwd"), ("1:nosuch", "/etc/group")])
async def test_a_user_whom_the_image_does_not_know_is_bad_input(cell: Cell, user: str, text: str) -> None:
    """Not "not found": clients would take the session for lost."""
    with pytest.raises(InvalidSpec, match=text):
        await cell.sh("true", user=user)
    assert (await cell.sh("true", user="1234")).outcome.exit_code == 0


@pytest.mark.shares_sandbox
async def test_a_missing_program_says_so(cell: Cell) -> None:
    result = await cell.argv("no-such-program")
    assert (result.outcome.status, result.outcome.reason, result.outcome.exit_code) == (
        Status.FAILED,
        Reason.NOT_STARTED,
        127,
    )
    assert b"no-such-program" in result.stderr


@pytest.mark.shares_sandbox
async def test_a_missing_directory_says_so(cell: Cell) -> None:
    result = await cell.sh("true", cwd="/no/such/place")
    assert result.outcome.reason is Reason.NOT_STARTED
    assert b"/no/such/place" in result.stderr


@pytest.mark.not_bare
@pytest.mark.shares_sandbox
@pytest.mark.parametrize(
    ("language", "code", "expected"),
    [
        (Language.PYTHON, "print(6 * 7)", b"42\n"),
        (Language.PYTHON, "import sys\nprint(__name__, len(sys.argv))", b"__main__ 1\n"),
        (Language.BASH, "for i in 1 2; do echo $i; done; [[ a == a ]] && echo bash", b"1\n2\nbash\n"),
        (Language.NODE, "console.log(6 * 7)", b"42\n"),
        (Language.NODE, "const x = 6\nconsole.log(x * 7)", b"42\n"),
        (Language.TS, "const n: number = 42; console.log(n)", b"42\n"),
    ],
)
async def test_every_language_runs(cell: Cell, language: Language, code: str, expected: bytes) -> None:
    result = await cell.exec(Command(what=Code(language, code)), timeout_s=60.0)
    assert (result.stdout, result.outcome.exit_code) == (expected, 0), result


@pytest.mark.parametrize("cwd", ["/workspace", "/tmp/elsewhere"])
@pytest.mark.parametrize(
    ("language", "helper", "code"),
    [
        (Language.PYTHON, "helper.py", "import helper\nprint(helper.x)"),
        (Language.NODE, "helper.js", "const helper = require('./helper')\nconsole.log(helper.x)"),
    ],
)
async def test_code_of_several_lines_finds_what_lies_beside_it(
    cell: Cell, language: Language, helper: str, code: str, cwd: str
) -> None:
    text = "x = 5" if language is Language.PYTHON else "exports.x = 5"
    await cell.sh(f"mkdir -p {cwd}; echo '{text}' > {cwd}/{helper}")
    result = await cell.exec(Command(what=Code(language, code)), cwd=cwd)
    assert (result.stdout, result.stderr) == (b"5\n", b"")
    assert set((await cell.sh("ls -A", cwd=cwd)).stdout.split()) <= {helper.encode(), b"__pycache__"}


@pytest.mark.not_bare
async def test_code_of_several_lines_runs_where_its_user_may_not_write(cell: Cell) -> None:
    await cell.sh("mkdir -m 755 /tmp/closed /tmp/open; chmod 777 /tmp/open; echo x = 5 | tee /tmp/open/helper.py")
    code = "import os\nprint(os.getuid(), os.getcwd(), os.path.dirname(__file__) == os.getcwd())"
    for place, is_beside in (("/tmp/closed", False), ("/tmp/open", True)):
        result = await cell.py(code, cwd=place, user="1234")
        assert result.stdout.decode() == f"1234 {place} {is_beside}\n", result


async def _until_sleeping(cell: Cell, *, is_so: bool = True) -> None:
    """Wait until `sleep` runs in the sandbox, or until nothing is left of it."""
    async with asyncio.timeout(60):
        while (b"sleep" in (await cell.sh("cat /proc/[0-9]*/comm")).stdout) is not is_so:
            pass


async def test_the_time_limit_ends_children_that_left_the_group(cell: Cell) -> None:
    result = await cell.sh(
        "setsid sleep 5001 & (setsid sh -c 'sleep 5002 & sleep 5003' &) ; nohup sleep 5004 & sleep 5005", timeout_s=1.5
    )
    assert result.outcome.status is Status.TIMED_OUT
    await _until_sleeping(cell, is_so=False)


async def test_a_cancelled_call_ends_the_command(cell: Cell) -> None:
    call = asyncio.ensure_future(cell.sh("setsid sleep 6001 & sleep 6002"))
    await _until_sleeping(cell)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await _until_sleeping(cell, is_so=False)


async def test_a_background_grandchild_does_not_delay_the_result(cell: Cell) -> None:
    result = await cell.sh("sleep 7001 & echo done")
    assert (result.stdout, result.outcome.exit_code) == (b"done\n", 0)
    await _until_sleeping(cell)


@pytest.mark.shares_sandbox
async def test_a_slow_reader_loses_nothing(cell: Cell) -> None:
    stream = await cell.engine.open_exec(
        OWNER, cell.id, Command(what=Shell("head -c 20000000 /dev/zero | tr '\\0' y; printf end"))
    )
    total, tail = 0, b""
    async for item in stream:
        if isinstance(item, Output):
            assert item.offset == total
            total += len(item.payload)
            tail = item.payload[-3:]
            await asyncio.sleep(0)
        else:
            assert item.exit_code == 0
    await stream.close()
    assert (total, tail) == (20_000_003, b"end")


async def test_the_same_exec_id_never_runs_twice(cell: Cell) -> None:
    command = Command(what=Shell("echo run >> /workspace/count; sleep 0.2; echo out"))
    outputs = []
    streams = [await cell.engine.open_exec(OWNER, cell.id, command, exec_id="once") for _ in range(2)]
    for stream in streams[:1]:
        outputs += [item.payload async for item in streams[1] if isinstance(item, Output)]
        await stream.close(kill=False)
    assert outputs == [b"out\n"]
    assert await cell.read("/workspace/count") == b"run\n"


@pytest.mark.shares_sandbox
async def test_another_owner_finds_nothing(cell: Cell) -> None:
    stranger = OwnerId("uid:12345")
    with pytest.raises(NotFound, match=f"session {cell.id} not found"):
        await cell.engine.exec(stranger, cell.id, Command(what=Argv(("true",))))
    with pytest.raises(NotFound):
        cell.engine.get_session(stranger, cell.id)
    assert cell.engine.list_sessions(stranger) == []


@pytest.mark.shares_sandbox
async def test_a_command_too_large_for_one_message_is_refused_with_the_remedy(cell: Cell) -> None:
    with pytest.raises(InvalidSpec, match="write it to a file"):
        await cell.sh("true " + "x" * 2_000_000)
    assert (await cell.sh("echo fine")).stdout == b"fine\n"


@pytest.mark.shares_sandbox
async def test_many_commands_at_once_keep_their_output_apart(cell: Cell) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(cell.sh(f"echo {n}; echo e{n} >&2; exit {n}")) for n in range(16)]
    for n, task in enumerate(tasks):
        result = task.result()
        assert (result.stdout, result.stderr, result.outcome.exit_code) == (b"%d\n" % n, b"e%d\n" % n, n)


async def test_what_ran_is_in_transcript_and_events(cell: Cell) -> None:
    await cell.sh("echo remembered")
    page = await cell.engine.transcript(OWNER, cell.id)
    assert page.output == "$ echo remembered\nremembered\n"
    assert page.eof
    events = (await cell.engine.events(OWNER, cell.id)).events
    assert any('"exec.ended"' in event for event in events)


def test_an_outcome_is_a_value() -> None:
    assert Outcome(status=Status.COMPLETED, exit_code=0) == Outcome(status=Status.COMPLETED, exit_code=0)
