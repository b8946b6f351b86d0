"""The names and manners of the SDK that k8e once had: its users change nothing."""

from __future__ import annotations

import base64
import inspect
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sandbox_client
from k8e.setup.provision import Provisioned
from tests.support.servers import NO_POOL, Server

ROOT = Path(__file__).resolve().parents[2]
APRIL = str(Path(__file__).with_name("april_sdk.py"))
SPOKEN = "True\nTrue\n42 oops 3\n['one', 'two']\nprint(40 + 2) ['/workspace/main.py']\nTrue\n"
"""What it prints where all is well."""
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


# As the documents of that time say, typed in the root of a checkout.
GENERATING = """\
python -m grpc_tools.protoc -I proto --python_out=sdk/python --grpc_python_out=sdk/python proto/sandbox/v1/sandbox.proto
touch sdk/python/sandbox/__init__.py sdk/python/sandbox/v1/__init__.py
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What of a checkout their users need, with the stubs that they generate."""
    root = tmp_path_factory.mktemp("checkout")
    for name in (".gitignore", "proto/sandbox/v1/sandbox.proto", "sdk/python/sandbox_client.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, root / name)
    (root / "src").symlink_to(ROOT / "src")
    subprocess.run("git init -q && git add .", shell=True, cwd=root, check=True)
    typed(root, GENERATING)
    return root


def typed(where: Path, lines: str) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["sh", "-ec", lines], cwd=where, env={**os.environ, "PATH": path}, check=True)


@pytest.fixture
def stubs(checkout: Path) -> Path:
    return checkout / "sdk" / "python"


def test_what_users_generate_is_nothing_that_git_sees(checkout: Path) -> None:
    made = checkout / "sdk" / "python" / "sandbox" / "v1" / "sandbox_pb2_grpc.py"
    seen = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=checkout, capture_output=True, text=True, check=True
    )
    assert (made.exists(), seen.stdout) == (True, "")


def test_the_sdk_is_where_it_was_and_needs_no_installation(stubs: Path, environ: dict[str, str]) -> None:
    """With grpc and protobuf, which generating brings along, and without our package or anything else that it names."""
    program = (
        "import sys\n"
        "sys.modules |= {'yaml': None, 'regex': None}\n"
        "import importlib.util\n"
        "print(importlib.util.find_spec('k8e'))\n"
        "import sandbox_client\n"
        "print(sandbox_client.__file__)\n"
        "with sandbox_client.sandbox_session(runtime_class='gvisor') as (client, sid):\n"
        "    print(client.exec(sid, 'echo here').stdout.strip())\n"
    )
    # Without `site` there are the libraries and not the link by which this checkout is installed among them.
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=stubs,
        env={**environ, "PYTHONPATH": sysconfig.get_path("purelib")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == f"None\n{stubs}/sandbox_client.py\nhere\n"


THEIRS = "from sandbox.v1 import sandbox_pb2 as theirs, sandbox_pb2_grpc"
OURS = "import sandbox_client; from k8e._proto import sandbox_pb2 as ours"
BOTH = """
print(theirs.ExecRequest(session_id="a", command="b").SerializeToString() == ours.ExecRequest(session_id="a", command="b").SerializeToString())
print("of_another_version" in theirs.ExecRequest.DESCRIPTOR.fields_by_name, "of_another_version" in ours.ExecRequest.DESCRIPTOR.fields_by_name)
"""


@pytest.mark.parametrize("order", [(THEIRS, OURS), (OURS, THEIRS)], ids=["theirs first", "ours first"])
@pytest.mark.parametrize("is_other", [False, True], ids=["same version", "another version"])
def test_their_stubs_and_ours_load_in_one_process(
    checkout: Path, tmp_path: Path, order: tuple[str, str], is_other: bool
) -> None:
    place = checkout / "sdk" / "python"
    if is_other:
        place = tmp_path / "sdk" / "python"
        shutil.copytree(checkout, tmp_path, dirs_exist_ok=True, symlinks=True)
        schema = tmp_path / "proto" / "sandbox" / "v1" / "sandbox.proto"
        begin = "message ExecRequest {\n"
        assert begin in schema.read_text()
        schema.write_text(schema.read_text().replace(begin, f"{begin}  string of_another_version = 9999;\n"))
        typed(tmp_path, GENERATING)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*order, BOTH])], cwd=place, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == f"True\n{is_other} False\n"


def test_stubs_that_users_generate_work_with_nothing_but_the_ca(
    stubs: Path, server: Server, environ: dict[str, str]
) -> None:
    ca = server.data_dir / "server" / "tls" / "sandbox-ca.crt"
    done = spoken(stubs, server, {**environ, "K8E_SANDBOX_CERT": str(ca)})
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == SPOKEN


# A server that takes these directories for /var/lib/k8e and /etc/k8e: the real ones are the machine's.
AS_SYSTEM = """
import sys
from pathlib import Path
from k8e import trust
from k8e.cli.main import main
trust.SYSTEM_DATA_DIR, trust.SYSTEM_CONFIG = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
sys.exit(main())
"""
# What programs see on such a machine; everything else in these two places is not there.
SEEN = """
mount -t tmpfs t /etc && mkdir /etc/k8e && mount --bind "$2" /etc/k8e
mount -t tmpfs t /var/lib && mkdir /var/lib/k8e && mount --bind "$1" /var/lib/k8e
shift 2 && exec "$@"
"""


@pytest.fixture
def system(data_dir: Path, host: Provisioned) -> Iterator[tuple[Server, Path]]:
    """The machine's own server, and its /etc/k8e."""
    etc = data_dir / "etc"
    program = ("-c", AS_SYSTEM, str(data_dir), str(etc / "k8e.yaml"))
    server = Server(data_dir, *NO_POOL, program=program)
    server.start()
    yield server, etc
    server.destroy()


def test_a_program_of_that_time_needs_no_setting_at_all(system: tuple[Server, Path], stubs: Path) -> None:
    server, etc = system

    def seen(*argv: str) -> subprocess.CompletedProcess[str]:
        inside = ["unshare", "--mount", "sh", "-ec", SEEN, "sh", str(server.data_dir), str(etc), *argv]
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(stubs)}
        return subprocess.run(inside, env=environ, capture_output=True, text=True, check=False)

    done = seen(sys.executable, APRIL, server.target().endpoint)
    assert (done.stderr, done.returncode, done.stdout) == ("", 0, SPOKEN)
    # Everybody may look for it there.
    stranger = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "cat"]
    certificate = seen(*stranger, "/var/lib/k8e/server/tls/serving-kube-apiserver.crt").stdout
    ca = (server.data_dir / "server" / "tls" / "sandbox-ca.crt").read_text()
    assert (ca in certificate, "PRIVATE KEY" in certificate) == (True, False)
    assert base64.b64encode(ca.encode()).decode() in seen(*stranger, "/etc/k8e/k8e.yaml").stdout


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
    return subprocess.run(
        [sys.executable, APRIL, server.target().endpoint],
        env={**environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
