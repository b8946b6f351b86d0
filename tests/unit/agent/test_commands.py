"""What a command is promised: true ends, complete output, and a kill that nothing survives."""

from __future__ import annotations

import asyncio
import signal

import pytest

from k8e.wire.aio import Data, Event, Link, RemoteError
from tests.support.agents import AgentRoot, dialled, execute, follow, request

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


async def pids(link: Link, comm: str) -> list[int]:
    listing = await link.call("processes")
    return [process["pid"] for process in listing["processes"] if process["comm"] == comm]


async def until_gone(link: Link, comm: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await pids(link, comm):
            await asyncio.sleep(0.01)


async def until_there(link: Link, comm: str, count: int = 1) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(await pids(link, comm)) < count:
            await asyncio.sleep(0.01)


async def next_event(stream: object, name: str) -> Event:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            item = await stream.receive()  # type: ignore[attr-defined]  # a Stream; typed loosely for brevity
            if isinstance(item, Event) and item.name == name:
                return item


async def test_processes_are_listed_with_their_arguments_within_bounds(link: Link) -> None:
    many = "for i in $(seq 50); do bash -c 'sleep 1001; true' \"$0\" & done"
    script = rf"bash -c 'sleep 1002; true' 'two words' $'\xff\x1b' & sleep 1003 & {many}; wait"
    args = request(argv=["bash", "-c", script, "\x01" * 100_000])
    stream = await link.open("exec", args)
    await until_there(link, "sleep", 52)
    lines = [process["args"] for process in (await link.call("processes"))["processes"]]
    assert {"bash -c sleep 1002; true two words \udcff\x1b", "sleep 1003"} <= set(lines)
    assert sum(map(len, lines)) <= 128 * 1024
    await link.call("kill", {"id": args["id"]})
    await follow(stream)


async def test_output_channels_and_exit_code_are_kept_apart(link: Link) -> None:
    done = await execute(link, shell="printf out; printf err >&2; exit 7")
    assert (done.stdout, done.stderr, done.code, done.exited["reason"]) == (b"out", b"err", 7, "exited")


async def test_a_signal_death_is_told_as_one(link: Link) -> None:
    done = await execute(link, shell="kill -SEGV $$")
    assert (done.code, done.exited["signal"], done.exited["reason"]) == (None, signal.SIGSEGV, "signaled")


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"argv": ["no-such-program"]}, 127, "no-such-program: command not found"),
        ({"argv": ["/no/such/program"]}, 127, "not found"),
        ({"argv": ["/etc/passwd"]}, 126, "Permission denied"),
        ({"argv": ["true"], "cwd": "/no/such/place"}, 126, "/no/such/place: No such file"),
        ({"language": "ts", "code": "1", "env": {"PATH": "/nowhere"}}, 127, "npm install"),
    ],
)
async def test_what_cannot_start_says_why(link: Link, change: dict[str, object], code: int, words: str) -> None:
    done = await execute(link, **change)
    assert (done.exited["reason"], done.code) == ("not_started", code)
    assert words in done.exited["detail"]


async def test_a_script_without_a_header_is_run_by_the_shell(link: Link) -> None:
    done = await execute(link, shell="printf 'echo script $1' > s; chmod +x s")
    assert done.code == 0
    assert (await execute(link, argv=["./s", "here"])).stdout == b"script here\n"


async def test_the_environment_is_the_default_plus_what_was_asked(link: Link) -> None:
    done = await execute(link, argv=["env"], env={"WORD": "x y", "LANG": "C"})
    found = dict(line.split("=", 1) for line in done.stdout.decode().splitlines())
    assert (found["WORD"], found["LANG"], found["HOME"]) == ("x y", "C", "/root")
    assert not [name for name in found if name.startswith(("PYTHON", "K8E"))]


async def test_a_command_inherits_only_its_three_descriptors(link: Link) -> None:
    done = await execute(link, argv=["sh", "-c", "ls /proc/$$/fd"])
    # dash keeps its own copy of nothing here; ls runs as a child
    assert set(done.stdout.split()) <= {b"0", b"1", b"2"}


@pytest.mark.parametrize("user", ["nobody", "65534", "65534:65534"])
async def test_another_user_is_that_user(link: Link, user: str) -> None:
    done = await execute(link, argv=["id", "-u"], user=user, cwd="/")
    assert done.stdout == b"65534\n"


async def test_an_unknown_user_is_refused(link: Link) -> None:
    with pytest.raises(RemoteError) as refusal:
        await execute(link, argv=["id"], user="no-such-user")
    assert refusal.value.code == "invalid"


async def test_input_reaches_the_command_and_ends(link: Link) -> None:
    stream = await link.open("exec", request(argv=["wc", "-c"], stdin=True))
    for _ in range(40):
        await stream.send(0, b"x" * 100_000)
    await stream.finish(0)
    assert (await follow(stream)).stdout.strip() == b"4000000"


async def test_without_input_a_reader_sees_the_end_at_once(link: Link) -> None:
    assert (await execute(link, argv=["cat"])).code == 0


@pytest.mark.parametrize(
    "shell",
    [
        "sleep 1000",
        "setsid sleep 1000 & wait",
        "(setsid sleep 1000 &); (sleep 1000 &); sleep 1000",
        "trap '' TERM HUP INT; sh -c 'trap \"\" TERM; setsid nohup sleep 1000' & wait",
    ],
)
async def test_a_timeout_kills_everything_the_command_started(link: Link, shell: str) -> None:
    done = await execute(link, shell=shell, timeout_s=0.3)
    assert done.exited["reason"] == "timed_out"
    await until_gone(link, "sleep")


async def test_a_kill_also_ends_what_outlived_the_main_process(link: Link) -> None:
    args = request(shell="setsid sleep 1000 >/dev/null 2>&1 & exit 3")
    done = await follow(await link.open("exec", args))
    assert done.code == 3
    await until_there(link, "sleep")
    await link.call("kill", {"id": args["id"]})
    await until_gone(link, "sleep")


async def test_a_fork_bomb_is_ended(link: Link) -> None:
    await link.call("configure", {"processes": 256})
    bomb = "for i in 1 2 3 4 5 6 7 8; do (while true; do setsid sleep 1000 & sleep 0.01; done) & done; wait"
    done = await execute(link, shell=bomb, timeout_s=0.5)
    assert done.exited["reason"] == "timed_out"
    await until_gone(link, "sleep")
    await until_gone(link, "sh")


async def test_killed_is_told_apart_from_dying(link: Link) -> None:
    args = request(argv=["sleep", "1000"])
    stream = await link.open("exec", args)
    await next_event(stream, "started")
    await link.call("kill", {"id": args["id"]})
    assert (await follow(stream)).exited["reason"] == "killed"


async def test_another_signal_goes_to_the_process_group(link: Link) -> None:
    # bash, because dash (0.5.12) loses a signal that comes while it vforks.
    args = request(argv=["bash", "-c", "trap 'echo caught; exit 5' USR1; echo up; while :; do sleep 0.02; done"])
    stream = await link.open("exec", args)
    async with asyncio.timeout(PATIENCE_S):
        while not isinstance(item := await stream.receive(), Data):
            pass
    stream.ack(1, item.offset + len(item.payload))
    await link.call("kill", {"id": args["id"], "signal": signal.SIGUSR1})
    done = await follow(stream)
    assert (done.code, done.stdout) == (5, b"caught\n")


async def test_a_background_child_with_the_pipe_does_not_delay_the_end(link: Link) -> None:
    done = await execute(link, shell="sleep 1000 & echo done")
    assert (done.stdout, done.code) == (b"done\n", 0)


async def test_a_slow_reader_loses_nothing(link: Link) -> None:
    args = request(shell="head -c 8000000 /dev/zero | tr '\\0' x; echo end >&2")
    stream = await link.open("exec", args)
    seen = 0
    held: list[Data] = []
    async with asyncio.timeout(PATIENCE_S):
        while (item := await stream.receive()) is not None:
            if isinstance(item, Data) and item.channel == 1:
                seen += len(item.payload)
                held.append(item)
                if sum(len(data.payload) for data in held) >= 1024 * 1024 or seen == 8_000_000:
                    await asyncio.sleep(0.005)
                    stream.ack(1, item.offset + len(item.payload))
                    held.clear()
            elif isinstance(item, Data):
                stream.ack(item.channel, item.offset + len(item.payload))
    assert seen == 8_000_000


async def test_a_reconnect_goes_on_where_the_reader_stopped(agent_root: AgentRoot) -> None:
    args = request(shell="i=0; while [ $i -lt 300000 ]; do echo line $i; i=$((i+1)); done; exit 4")
    expected = b"".join(b"line %d\n" % number for number in range(300000))
    received = b""
    async with dialled(agent_root) as first:
        stream = await first.open("exec", args)
        while len(received) < 500_000:
            item = await stream.receive()
            if isinstance(item, Data):
                received += item.payload
                stream.ack(item.channel, item.offset + len(item.payload))
    for _ in range(3):
        async with dialled(agent_root) as again:
            stream = await again.open("attach", {"id": args["id"], "offsets": {"1": len(received), "2": 0}})
            goal = len(received) + 400_000
            while (item := await stream.receive()) is not None and len(received) < goal:
                if isinstance(item, Data):
                    assert item.offset == len(received)
                    received += item.payload
                    stream.ack(item.channel, item.offset + len(item.payload))
    async with dialled(agent_root) as last:
        stream = await last.open("attach", {"id": args["id"], "offsets": {"1": len(received), "2": 0}})
        done = await follow(stream)
    assert received + done.stdout == expected
    assert done.code == 4


async def test_input_resumes_where_the_agent_stopped(agent_root: AgentRoot) -> None:
    args = request(argv=["cat"], stdin=True)
    async with dialled(agent_root) as first:
        stream = await first.open("exec", args)
        await stream.send(0, b"first ")
        while not isinstance(await stream.receive(), Data):
            pass
    async with dialled(agent_root) as second:
        stream = await second.open("attach", {"id": args["id"], "offsets": {"1": 0, "2": 0}})
        await stream.send(0, b"second")
        await stream.finish(0)
        assert (await follow(stream)).stdout == b"first second"


async def test_a_repeated_request_attaches_instead_of_starting_twice(link: Link) -> None:
    args = request(shell="echo started >> log; until [ -e go ]; do sleep 0.01; done; cat log")
    first = await link.open("exec", args)
    await next_event(first, "started")
    second = await link.open("exec", args)
    with pytest.raises(RemoteError) as refusal:
        await follow(first)
    assert refusal.value.code == "conflict"
    await execute(link, shell="touch go")
    assert (await follow(second)).stdout == b"started\n"


async def test_a_finished_exec_is_kept_until_it_is_forgotten(link: Link) -> None:
    args = request(shell="echo kept; exit 2")
    await follow(await link.open("exec", args))
    again = await follow(await link.open("attach", {"id": args["id"], "offsets": {"1": 0, "2": 0}}))
    assert again.code == 2
    await link.call("forget", {"id": args["id"]})
    with pytest.raises(RemoteError) as refusal:
        await follow(await link.open("attach", {"id": args["id"], "offsets": {}}))
    assert refusal.value.code == "not_found"


async def test_a_runner_killed_from_inside_ends_its_exec_and_leaves_no_orphan(link: Link) -> None:
    args = request(shell="setsid sleep 1000 & sleep 0.1; kill -9 $PPID; sleep 1000")
    done = await follow(await link.open("exec", args))
    assert done.exited["reason"] == "killed"
    await until_gone(link, "sleep")
    assert (await execute(link, shell="echo alive")).stdout == b"alive\n"


async def test_a_stopped_runner_does_not_stop_a_kill(link: Link) -> None:
    args = request(shell="kill -STOP $PPID; sleep 1000", timeout_s=0.3)
    assert (await follow(await link.open("exec", args))).exited["reason"] in ("timed_out", "killed")
    await until_gone(link, "sleep")


async def test_pid_1_survives_attempts_on_its_life(link: Link) -> None:
    await execute(link, shell="kill -9 1; kill -TERM 1; kill -INT 1; kill -SEGV 1; kill -STOP 1; true")
    assert (await execute(link, shell="echo alive")).stdout == b"alive\n"


async def test_orphans_are_reaped(link: Link) -> None:
    await execute(link, shell="for i in 1 2 3 4 5; do (true &) ; done")
    await until_gone(link, "sh")


async def test_the_largest_process_dies_for_memory_and_its_exec_says_so(link: Link) -> None:
    hog = "import time; x = b'x' * 50_000_000; print('up', flush=True); time.sleep(1000)"
    args = request(argv=["python3", "-c", hog])
    stream = await link.open("exec", args)
    async with asyncio.timeout(PATIENCE_S):
        while not isinstance(item := await stream.receive(), Data):
            pass
    stream.ack(1, item.offset + len(item.payload))
    victim = await link.call("oom")
    assert victim["exec"] == args["id"]
    assert (await follow(stream)).exited["reason"] == "oom_killed"


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("no.such.op", {}),
        ("exec", {}),
        ("exec", {"id": "a", "argv": []}),
        ("exec", {"id": "a", "argv": ["x\0y"]}),
        ("exec", {"id": "a", "argv": [1]}),
        ("exec", {"id": "a", "argv": ["true"], "env": {"A=B": "c"}}),
        ("exec", {"id": "a", "argv": ["true"], "env": []}),
        ("exec", {"id": "a", "argv": ["true"], "pty": 5}),
        ("exec", {"id": "a", "language": "cobol", "code": "x"}),
        ("exec", {"id": "a", "language": "python"}),
        ("exec", {"id": "a", "argv": ["true"], "timeout_s": "soon"}),
        ("attach", {"id": "a"}),
        ("kill", {"id": None}),
        ("configure", {"processes": "many"}),
        ("file.read", {"path": 3}),
        ("file.read", {"path": "/etc/passwd", "offset": -1}),
        ("file.write", {"path": "/tmp/x", "mode": "q"}),
        ("file.list", {"path": "/", "since": "x"}),
    ],
)
async def test_an_odd_request_is_refused_and_the_agent_lives(link: Link, op: str, args: dict[str, object]) -> None:
    with pytest.raises(RemoteError) as refusal:
        await link.call(op, args)
    assert refusal.value.code in ("invalid", "not_found")
    assert (await execute(link, shell="echo alive")).stdout == b"alive\n"


async def test_the_newest_engine_wins(agent_root: AgentRoot) -> None:
    async with dialled(agent_root) as first, dialled(agent_root) as second:
        async with asyncio.timeout(PATIENCE_S):
            await first.closed()
        assert (await execute(second, shell="echo second")).stdout == b"second\n"
        assert first.hello["boot"] == second.hello["boot"]
