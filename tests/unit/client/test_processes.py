"""The SDK beside threads, forks, loops and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from k8e.client import NotFound, SandboxClient
from k8e.client.discovery import Target
from tests.support import inside
from tests.support.dev_mode import PATIENT

PATIENCE_S = 60.0


async def broken(error: Exception | None = None) -> AsyncIterator[bytes]:
    yield b"something"
    raise error or ZeroDivisionError


def own_children(task: Path) -> list[str]:
    return (task / "children").read_text().split()


def said_in_child(program: Callable[[], str]) -> str:
    """What a forked child's program returns, or why it failed."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            said = program()
        except BaseException:  # noqa: BLE001 - told to the parent
            said = traceback.format_exc()
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        said = file.read()
    os.waitpid(pid, 0)
    return said


def test_one_client_serves_sixteen_threads(target: Target) -> None:
    with SandboxClient(target=target) as client:
        seen: dict[int, list[str]] = {n: [] for n in range(16)}

        def work(n: int) -> None:
            for turn in range(5):
                seen[n].append(client.run(f"echo {n}.{turn}").stdout)

        threads = [threading.Thread(target=work, args=(n,)) for n in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == {n: [f"{n}.{turn}\n" for turn in range(5)] for n in range(16)}


def test_a_forked_child_has_a_session_of_its_own_and_leaves_its_parents(target: Target) -> None:
    with SandboxClient(target=target) as client:
        parents = client.run("echo parent > file").session_id

        def child() -> str:
            ran = client.run("cat file || echo child")
            assert ran.session_id != parents
            assert client.exec(parents, "cat", stdin=b"x" * 700_000).stdout_bytes == b"x" * 700_000
            stream = client.exec_stream(parents, "echo up; exec sleep 60")
            assert next(stream) == "up\n"
            stream.close()  # type: ignore[attr-defined]  # it is a generator
            with pytest.raises(ZeroDivisionError):
                client.exec(parents, "cat", stdin=broken())
            with pytest.raises(NotFound, match="sess-gone"):
                client.get("sess-gone")
            client.close()
            return ran.stdout

        assert said_in_child(child) == "child\n"
        assert client.run("cat file").stdout == "parent\n"


def test_a_child_whose_relay_was_killed_gets_another(by_tls: Target) -> None:
    with SandboxClient(target=by_tls) as client:
        client.whoami()

        def child() -> str:
            first = client.whoami().role
            (relay,) = [int(pid) for task in Path("/proc/self/task").iterdir() for pid in own_children(task)]
            os.kill(relay, signal.SIGKILL)
            os.waitid(os.P_PID, relay, os.WEXITED | os.WNOWAIT)
            second = client.whoami().role
            client.close()
            return f"{first} {second}"

        assert said_in_child(child) == "admin admin"


@pytest.mark.parametrize("error", [ZeroDivisionError(), FileNotFoundError("gone"), BrokenPipeError()], ids=repr)
def test_an_error_in_what_is_sent_comes_back_as_it_is(target: Target, error: Exception) -> None:
    with SandboxClient(target=target) as client, client.create() as session:
        with pytest.raises(type(error)):
            session.exec("cat", stdin=broken(error))
        with pytest.raises(type(error)):
            session.files.write("a", broken(error))
        assert session.exec("cat", stdin=b"x").stdout == "x"


def test_a_child_of_a_process_that_never_called_needs_no_relay(target: Target) -> None:
    """The control: here the channel itself serves the child."""
    program = (
        "import os, sys\nfrom k8e.client import SandboxClient\n"
        "client = SandboxClient()\n"
        "if os.fork() == 0:\n"
        "    print(client.run('echo child').stdout, end='', flush=True)\n"
        "    client.close()\n"
        "    os._exit(0)\n"
        "os.wait()\nclient.close()\n"
    )
    assert ran(program, target).stdout == "child\n"


def test_a_client_that_was_never_closed_warns_and_does_not_hold_the_interpreter(target: Target) -> None:
    said = ran(
        "from k8e.client import SandboxClient\nclient = SandboxClient()\nprint(client.run('echo hi').stdout)", target
    )
    assert (said.stdout, said.returncode) == ("hi\n\n", 0)
    assert "ResourceWarning: unclosed" in said.stderr
    program = "from k8e.client import SandboxClient\nwith SandboxClient() as client: client.run('true')"
    tidy = ran(PATIENT + program, target)
    assert (tidy.stderr, tidy.returncode) == ("", 0)


def test_an_async_client_that_was_never_closed_warns(target: Target) -> None:
    program = (
        "import asyncio\nfrom k8e.client import AsyncSandboxClient\n"
        "async def main():\n    client = AsyncSandboxClient()\n    print((await client.whoami()).role)\n"
        "asyncio.run(main())"
    )
    said = ran(program, target)
    assert (said.stdout, said.returncode) == ("admin\n", 0)
    assert "ResourceWarning: unclosed" in said.stderr


def test_closing_twice_is_once_and_a_closed_client_says_so(target: Target) -> None:
    client = SandboxClient(target=target)
    client.run("true")
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.run("true")


def test_a_call_that_another_thread_s_close_meets_ends(target: Target) -> None:
    client = SandboxClient(target=target)
    sid = client.create_session()
    ended: list[BaseException] = []
    first = threading.Event()

    def work() -> None:
        try:
            for _ in client.exec_output(sid, "echo begun; exec sleep 100"):
                first.set()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ended
            ended.append(error)

    working = threading.Thread(target=work)
    working.start()
    first.wait(PATIENCE_S)
    client.close()
    working.join(PATIENCE_S)
    # Cancelled while it waited, or told so when it asked for the next piece.
    assert [type(each).__name__ for each in ended] in (["CancelledError"], ["RuntimeError"])
    with SandboxClient(target=target) as again:
        again.destroy_session(sid)


def test_an_interrupt_stops_the_command_inside(target: Target, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    program = (
        "import os, signal, threading, time, pathlib\nfrom k8e.client import SandboxClient\n"
        f"file = pathlib.Path({str(file)!r})\n"
        "def interrupt():\n"
        "    while not (file.exists() and file.read_text()): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "with SandboxClient() as client:\n"
        "    sid = client.create_session()\n"
        "    threading.Thread(target=interrupt).start()\n"
        "    try:\n"
        f"        client.exec(sid, 'echo $$ > {file}; exec sleep 100', timeout=90)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', client.exec(sid, 'echo alive').stdout, end='')\n"
    )
    assert ran(program, target).stdout == "interrupted alive\n"
    inside.wait_gone(int(file.read_text()))


def test_a_callback_that_calls_the_client_is_told_instead_of_waiting_for_itself(target: Target) -> None:
    with SandboxClient(target=target) as client:

        async def nested() -> None:
            client.run("true")

        with pytest.raises(RuntimeError, match="own thread"):
            client.loop.wait(nested())


def ran(program: str, target: Target) -> subprocess.CompletedProcess[str]:
    named = {} if target.socket else {"K8E_SANDBOX_ENDPOINT": target.endpoint}
    environ = {**os.environ, "K8E_DATA_DIR": target.found, **named}
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], env=environ, capture_output=True, text=True, check=False
    )
