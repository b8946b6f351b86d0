"""The names and manners of the SDK that k8e once had: its users change nothing."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sandbox_client
from tests.support.servers import Server

ROOT = Path(__file__).resolve().parents[2]
ANY = object()
"""A default that may be ours."""

FORMER: dict[str, list[tuple[str, object]]] = {
    "__init__": [("endpoint", None), ("tenant_id", "")],
    "run": [("code", ANY), ("language", "bash"), ("timeout", 30)],
    "exec": [("session_id", ANY), ("command", ANY), ("timeout", 30)],
    "exec_stream": [("session_id", ANY), ("command", ANY), ("timeout", 300)],
    "create_session": [("runtime_class", ANY), ("allowed_hosts", None), ("tenant_id", "")],
    "destroy_session": [("session_id", ANY)],
    "write_file": [("session_id", ANY), ("path", ANY), ("content", ANY)],
    "read_file": [("session_id", ANY), ("path", ANY)],
    "list_files": [("session_id", ANY), ("since", 0)],
    "pip_install": [("session_id", ANY), ("packages", ANY)],
    "close": [],
}


@pytest.mark.parametrize("name", FORMER)
def test_every_former_method_takes_what_it_took(name: str) -> None:
    found = getattr(sandbox_client.SandboxClient, name)
    signature = inspect.signature(getattr(found, "__wrapped__", found))
    taken = [each for each in signature.parameters.values() if each.name != "self"]
    for given, (wanted, default) in zip(taken, FORMER[name], strict=False):
        assert given.name == wanted
        assert given.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert default in (ANY, given.default)
    assert all(each.default is not inspect.Parameter.empty for each in taken[len(FORMER[name]) :])


def test_sandbox_session_takes_what_it_took() -> None:
    names = list(inspect.signature(sandbox_client.sandbox_session).parameters)
    assert names == ["runtime_class", "allowed_hosts", "endpoint"]


def test_a_program_of_that_time_runs(environ: dict[str, str]) -> None:
    program = (
        "from sandbox_client import SandboxClient, sandbox_session\n"
        "with SandboxClient() as client:\n"
        "    done = client.run('print(1 + 1)', language='python')\n"
        "    print(done.stdout.strip(), done.stderr, done.exit_code)\n"
        "with sandbox_session(runtime_class='gvisor', allowed_hosts=['github.com']) as (client, sid):\n"
        "    client.write_file(sid, '/workspace/main.py', 'print(40 + 2)')\n"
        "    print(client.exec(sid, 'python3 /workspace/main.py').stdout.strip())\n"
        "    print(''.join(client.exec_stream(sid, 'echo streamed')).strip())\n"
        "    print([each.path for each in client.list_files(sid)], client.read_file(sid, '/workspace/main.py'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == "2  0\n42\nstreamed\n['/workspace/main.py'] print(40 + 2)\n"


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """As the documents of that time say: `python -m grpc_tools.protoc -I proto …`."""
    where = tmp_path / "stubs"
    where.mkdir()
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", f"--python_out={where}"]
    subprocess.run([*command, f"--grpc_python_out={where}", "sandbox/v1/sandbox.proto"], cwd=ROOT, check=True)
    return where


def test_stubs_that_users_generate_work_with_nothing_but_the_ca(
    stubs: Path, server: Server, environ: dict[str, str]
) -> None:
    ca = server.data_dir / "server" / "tls" / "sandbox-ca.crt"
    done = spoken(stubs, server, {**environ, "K8E_SANDBOX_CERT": str(ca)})
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == ("True\nTrue\n42 oops 3\n['one', 'two']\nprint(40 + 2) ['/workspace/main.py']\nTrue\n")


def test_the_same_stubs_do_not_trust_a_server_without_its_ca(
    stubs: Path, server: Server, environ: dict[str, str], tmp_path: Path, other_ca: Callable[[Path], Path]
) -> None:
    done = spoken(stubs, server, {**environ, "K8E_SANDBOX_CERT": str(other_ca(tmp_path))})
    assert done.returncode != 0
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr


@pytest.fixture
def other_ca() -> Callable[[Path], Path]:
    """Somebody else's authority."""
    import datetime

    from k8e.identity.authority import Authority

    def make(where: Path) -> Path:
        return Authority.open(where / "other", now=datetime.datetime.now(datetime.UTC)).path

    return make


def spoken(stubs: Path, server: Server, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(stubs)])
    program = Path(__file__).with_name("april_sdk.py")
    return subprocess.run(
        [sys.executable, str(program), server.target().endpoint],
        env={**environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
