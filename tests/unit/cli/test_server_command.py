"""`k8e server …`: settings, and the commands that look at or stop a server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from k8e.doors.connect import serve
from k8e.egress.defaults import Registries
from k8e.errors import InvalidSpec
from k8e.locks import show
from k8e.model import HostRule
from k8e.policy import entries
from k8e.server import egress_settings
from k8e.settings import load
from tests.support.door import open_door, server_process


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "k8e.cli.main", "server", *words]
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root"), **environ}
    return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60, check=False)


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "k8e.toml"
    file.write_text('pool_min = 1\npool_max = 5\ndefault_runtime = "container"\n')
    environ = {"K8E_SANDBOX_POOL_MIN": "3", "K8E_SANDBOX_DEFAULT_MEMORY": "1Gi"}
    settings = load(tmp_path, flags={"pool_min": "4"}, environ=environ, file=file)
    assert (settings.pool_min, settings.pool_max, settings.default_runtime) == (4, 5, "container")
    assert (settings.default_memory, settings.addresses()) == (2**30, (("127.0.0.1", 50051),))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("listen", "nonsense"),
        ("listen", "127.0.0.1:99999"),
        ("default_runtime", "magic"),
        ("default_cpu", "0"),
        ("default_memory", "lots"),
        ("pool_min", "-1"),
        ("allow_open_network", "perhaps"),
        ("loopback_identity", "perhaps"),
        ("advertise_hostname", "not a name"),
        ("default_hosts", "fine.example,*.com"),
        ("log_level", "loud"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(InvalidSpec, match=f"^{name}: "):
        load(tmp_path, flags={name: text}, environ={})


def test_a_name_the_file_should_not_have_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("poolmin = 1\n")
    with pytest.raises(InvalidSpec, match="poolmin"):
        load(tmp_path, flags={}, environ={}, file=tmp_path / "f")


def test_what_sessions_may_reach_is_the_operators_to_say(tmp_path: Path) -> None:
    (tmp_path / "f").write_text('allow_open_network = true\ndefault_hosts = ["a.example", "*.b.example:22"]\n')
    registries = Registries(hosts=(HostRule(name="mirror.example", may_be_private=True),), env={"PIP_INDEX_URL": "x"})
    egress = egress_settings(load(tmp_path, flags={}, environ={}, file=tmp_path / "f"), registries)
    assert egress.allow_open
    assert [entries.text(rule) for rule in egress.rules] == [
        "mirror.example",
        "github.com",
        "raw.githubusercontent.com",
        "a.example",
        "*.b.example:22",
    ]
    assert egress.rules[0] == registries.hosts[0]
    assert egress.env == registries.env
    plain = egress_settings(load(tmp_path, flags={}, environ={}), Registries())
    assert (plain.allow_open, len(plain.rules)) == (False, 2)


def test_addresses_are_parsed_with_or_without_brackets(tmp_path: Path) -> None:
    settings = load(tmp_path, flags={"listen": "127.0.0.1:1, [::1]:2"}, environ={})
    assert settings.addresses() == (("127.0.0.1", 1), ("::1", 2))


def test_status_and_stop_of_a_running_server(tmp_path: Path) -> None:
    with server_process(tmp_path) as process:
        status = json.loads(run("status", "--data-dir", str(tmp_path)).stdout)
        assert list(status)[:6] == ["pid", "data_dir", "doors", "runtimes", "pool", "sessions"]
        assert (status["pid"], status["data_dir"]) == (process.pid, str(tmp_path))
        assert status["egress"]["denied"] == 0
        stopped = run("stop", "--data-dir", str(tmp_path))
        assert (stopped.returncode, json.loads(stopped.stdout)) == (0, {"ok": True})
        assert process.wait(60) == 0


@pytest.mark.anyio
async def test_a_server_that_does_not_stop_in_time_is_said_with_its_log(data_dir: Path) -> None:
    code = (
        "import sys\nfrom k8e.cli import server\nserver.STOP_S = 0.0\n"
        f"from k8e.cli.main import main\nsys.exit(main(['server', 'stop', '--data-dir', {str(data_dir)!r}], prog='k8e'))"
    )
    async with open_door(data_dir) as door, serve(door.edge, path=data_dir / "server" / "k8e.sock") as address:
        (data_dir / "server" / "server.json").write_text(json.dumps({"pid": 1, "doors": {"connect": address}}))
        with show(data_dir / "server" / "lock"):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            said, trouble = await process.communicate()
        assert door.stopped.is_set()
    told = json.loads(said)
    assert (process.returncode, told["ok"], told["error"], trouble) == (2, False, "no answer in time", b"")
    assert "server.log" in told["detail"]


def test_stopping_what_does_not_run_is_harmless(tmp_path: Path) -> None:
    done = run("stop", "--data-dir", str(tmp_path))
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True)


def test_status_of_nothing_is_unreachable(tmp_path: Path) -> None:
    done = run("status", "--data-dir", str(tmp_path), K8E_SANDBOX_ENDPOINT="127.0.0.1:1")
    assert (done.returncode, json.loads(done.stdout)["error"]) == (2, "service unreachable")


def test_a_wrong_flag_is_said_before_anything_is_started(tmp_path: Path) -> None:
    done = run("--data-dir", str(tmp_path / "new"), "--default-cpu", "many")
    assert (done.returncode, "default_cpu" in done.stderr) == (1, True)
    assert not (tmp_path / "new").exists()
