"""The server ends under foreground commands: each caller waits, and gets all of the output and the true exit code."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from k8e.cli.running import is_running
from k8e.client import Gates, SandboxClient, retries
from k8e.client.errors import Unreachable
from k8e.client.light.places import last_settings
from tests.support.eventually import eventually
from tests.support.servers import Server

pytestmark = pytest.mark.timeout(240)

_LINES = 60_000
"""More than the sandbox keeps of what was read."""
_WANTED = "".join(f"{n}\n" for n in range(1, _LINES + 1)) + "end\n"

Result = tuple[int, str]
Caller = Callable[[SandboxClient, str, str], Result]


def _code(name: str, code: int) -> str:
    return (
        f"echo once >> ran-{name}; seq {_LINES}; touch said-{name}; "
        f"until [ -e go ]; do sleep 0.05; done; echo end; exit {code}"
    )


def _cli(server: Server, *flags: str) -> Callable[[str, str], subprocess.CompletedProcess[str]]:
    def run(session_id: str, code: str) -> subprocess.CompletedProcess[str]:
        argv = [
            sys.executable,
            "-m",
            "k8e",
            "sandbox",
            "run",
            "--session-id",
            session_id,
            "--timeout",
            "120",
            *flags,
            code,
        ]
        return subprocess.run(argv, env=server.environ, capture_output=True, text=True, check=False)

    return run


def _callers(server: Server) -> dict[str, Caller]:
    def answer(_: SandboxClient, session_id: str, code: str) -> Result:
        done = _cli(server)(session_id, code)
        shown: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == shown["exit_code"], done
        assert not shown["truncated"]
        return done.returncode, shown["stdout"]

    def raw(_: SandboxClient, session_id: str, code: str) -> Result:
        done = _cli(server, "--raw")(session_id, code)
        return done.returncode, done.stdout

    def execute(client: SandboxClient, session_id: str, code: str) -> Result:
        done = client.exec(session_id, code, timeout=120)
        return done.exit_code, done.stdout

    def by_tls(_: SandboxClient, session_id: str, code: str) -> Result:
        with SandboxClient(target=server.by_tls()) as client:
            return execute(client, session_id, code)

    def run(client: SandboxClient, session_id: str, code: str) -> Result:
        done = client.run(code, session_id=session_id, timeout=120)
        return done.exit_code, done.stdout

    def stream(client: SandboxClient, session_id: str, code: str) -> Result:
        # Its text alone does not say how the command ended.
        return 0, "".join(client.exec_stream(session_id, code, timeout=120))

    return {"answer": answer, "raw": raw, "exec": execute, "tls": by_tls, "run": run, "stream": stream}


def _end(server: Server, how: str) -> None:
    if how == "stopped":
        assert server.stop() == 0
        server.start()
        return
    server.leave_to_clients()
    died = _pid(server)
    assert eventually(lambda: _pid(server) not in {0, died})


def _pid(server: Server) -> int:
    """Of the server that is ready there, or was when it died."""
    try:
        return int(json.loads((server.data_dir / "server" / "server.json").read_text())["pid"])
    except OSError:
        return 0


@pytest.mark.parametrize(("how", "runtime"), [("killed", "gvisor"), ("stopped", "container")])
def test_every_way_of_running_a_command_survives_the_end_of_its_server(mortal: Server, how: str, runtime: str) -> None:
    callers = _callers(mortal)
    codes = {name: 0 if name == "stream" else number for number, name in enumerate(callers, start=20)}
    before = last_settings(mortal.data_dir)
    assert before is not None
    with SandboxClient(target=mortal.target()) as client, ThreadPoolExecutor(len(callers)) as threads:
        sid = client.create_session(runtime_class=runtime)
        results: dict[str, Future[Result]] = {
            name: threads.submit(caller, client, sid, _code(name, codes[name])) for name, caller in callers.items()
        }
        assert eventually(lambda: client.exec(sid, "ls said-* | wc -l").stdout == f"{len(callers)}\n")
        _end(mortal, how)
        client.write_file(sid, "/workspace/go", "")
        for name, result in results.items():
            assert result.result() == (codes[name], _WANTED), name
        ran = client.exec(sid, "cat ran-*").stdout
        assert ran == "once\n" * len(callers)
    after = last_settings(mortal.data_dir)
    assert after is not None
    assert after.settings == before.settings


def test_input_goes_on_at_the_right_byte(mortal: Server) -> None:
    lines = [f"{n}\n".encode() for n in range(200_000)]
    with SandboxClient(target=mortal.target()) as client:
        sid = client.create_session(runtime_class="container")
        code = "head -n 50000 | tee half > /dev/null; until [ -e go ]; do sleep 0.05; done; cat > rest; cat half rest; exit 7"
        argv = [sys.executable, "-m", "k8e", "sandbox", "run", "--session-id", sid, "--raw", "--timeout", "120", code]
        process = subprocess.Popen(argv, env=mortal.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with process, ThreadPoolExecutor(1) as threads:
            talking = threads.submit(process.communicate, b"".join(lines))
            assert eventually(lambda: client.exec(sid, "wc -l < half 2> /dev/null").stdout == "50000\n")
            _end(mortal, "killed")
            client.write_file(sid, "/workspace/go", "")
            output, _ = talking.result()
    assert process.returncode == 7
    # What `head` read and did not print is gone, as in every shell; the rest comes once and in order.
    kept = output.splitlines(keepends=True)
    assert kept[:50_000] == lines[:50_000]
    assert kept[50_001:] == lines[-len(kept) + 50_001 :]


def test_a_command_that_waited_for_a_person_is_asked_about_again(mortal: Server) -> None:
    with SandboxClient(target=mortal.target()) as client:
        sid = client.create_session(runtime_class="container", gates=Gates(commands=("echo approved",)))
        key = client.create_api_key("phone", role="approver", owner="uid:0").key
    asked: set[str] = set()

    def both() -> bool:
        asked.update(each.approval_id for each in person.approvals())
        return len(asked) == 2

    with (
        SandboxClient(target=dataclasses.replace(mortal.target(), api_key=key)) as person,
        ThreadPoolExecutor(2) as threads,
    ):
        callers = [threads.submit(_cli(mortal, *flags), sid, "echo approved; exit 3") for flags in ((), ("--raw",))]
        try:
            assert eventually(both)
            before = set(asked)
            _end(mortal, "killed")
            assert eventually(lambda: len({each.approval_id for each in person.approvals()} - before) == 2)
        finally:
            # Or nobody would ever answer them.
            for each in person.approvals():
                person.approve(each.approval_id)
        answered, raw = (each.result() for each in callers)
    assert (answered.returncode, json.loads(answered.stdout)["stdout"]) == (3, "approved\n")
    assert (raw.returncode, raw.stdout) == (3, "approved\n")


def test_a_caller_is_told_when_nobody_starts_a_server_that_was_stopped(
    mortal: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "BUDGET_S", 1.0)
    with SandboxClient(target=mortal.target()) as client:
        sid = client.create_session(runtime_class="container")
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(client.exec, sid, "touch runs; sleep 600", timeout=0)
            assert eventually(lambda: client.exec(sid, "test -e runs").exit_code == 0)
            assert mortal.stop() == 0
            with pytest.raises(Unreachable):
                call.result()
        assert not is_running(mortal.data_dir)
        mortal.start()
