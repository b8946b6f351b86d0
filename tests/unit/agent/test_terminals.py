"""Terminals: a real controlling terminal with size, signals and a foreground group."""

from __future__ import annotations

import asyncio
import signal

import pytest

from k8e.wire.aio import Data, Link, Stream
from tests.support.agents import execute, follow, request

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
SIZE = {"rows": 30, "cols": 100}


def _bash(text: str) -> list[str]:
    """For programs with traps: dash (0.5.12) loses a signal that comes while it vforks."""
    return ["bash", "-c", text]


async def until(stream: Stream, word: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(PATIENCE_S):
        while word not in seen:
            item = await stream.receive()
            assert item is not None, seen
            if isinstance(item, Data):
                seen += item.payload
                stream.ack(item.channel, item.offset + len(item.payload))
    return seen


async def pid_of_the_only_exec(link: Link) -> int:
    """Once the agent knows it: output may be quicker than the news that a command was started."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            (only,) = (await link.call("execs"))["execs"]
            if only["pid"]:
                return int(only["pid"])


async def test_a_terminal_has_its_size_and_is_the_controlling_one(link: Link) -> None:
    done = await execute(link, shell="stty size < /dev/tty; tty", pty=SIZE)
    assert done.stdout.startswith(b"30 100\r\n/dev/pts/")


async def test_a_resize_reaches_the_program(link: Link) -> None:
    args = request(argv=_bash("trap 'stty size; exit' WINCH; echo up; while :; do sleep 0.02; done"), pty=SIZE)
    stream = await link.open("exec", args)
    await until(stream, b"up")
    await link.call("resize", {"id": args["id"], "rows": 50, "cols": 20})
    assert b"50 20" in (await follow(stream)).stdout


async def test_typed_control_characters_signal_the_foreground_group(link: Link) -> None:
    args = request(argv=_bash("trap 'echo interrupted; exit 3' INT; echo up; while :; do sleep 0.02; done"), pty=SIZE)
    stream = await link.open("exec", args)
    await until(stream, b"up")
    await stream.send(0, b"\x03")
    done = await follow(stream)
    assert (done.code, b"interrupted" in done.stdout) == (3, True)


AFTER_ITS_JOB = """
import os, signal
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
signal.signal(signal.SIGHUP, lambda number, frame: os._exit(7))
job = os.fork()
if job == 0:
    signal.pause()
os.setpgid(job, job)
os.tcsetpgrp(0, job)
os.kill(job, signal.SIGKILL)
os.waitpid(job, 0)
print("up", flush=True)
signal.pause()
"""
"""A shell in the moment between the end of its job and its own turn on the terminal."""


async def test_a_signal_reaches_a_shell_whose_job_has_just_ended(link: Link) -> None:
    args = request(argv=["python3", "-c", AFTER_ITS_JOB], pty=SIZE)
    stream = await link.open("exec", args)
    await until(stream, b"up")
    shell = await pid_of_the_only_exec(link)
    foreground = await link.call("foreground", {"id": args["id"]})
    assert foreground["pgid"] not in (-1, shell), "the control: the terminal still names the job"
    await link.call("kill", {"id": args["id"], "signal": signal.SIGHUP})
    assert (await follow(stream)).code == 7


async def test_the_foreground_group_is_known(link: Link) -> None:
    args = request(argv=["bash", "--norc", "-i"], pty=SIZE, env={"PS1": "ready> "})
    stream = await link.open("exec", args)
    await until(stream, b"ready> ")
    foreground = await link.call("foreground", {"id": args["id"]})
    assert foreground["pgid"] == await pid_of_the_only_exec(link)
    await stream.send(0, b"exit 6\n")
    assert (await follow(stream)).code == 6


async def test_a_finished_input_is_an_end_of_file(link: Link) -> None:
    stream = await link.open("exec", request(argv=["cat"], pty=SIZE))
    await stream.send(0, b"hello\n")
    await until(stream, b"hello\r\nhello\r\n")
    await stream.finish(0)
    assert (await follow(stream)).code == 0
