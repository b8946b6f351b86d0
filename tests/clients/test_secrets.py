"""Secrets by the command line, on the real server: used, listed, and found nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Run, told
from tests.support.servers import Server

VALUE = "whoever-finds-this-has-found-a-leak-93b1"


@pytest.fixture
def secret(k8e: Run) -> Iterator[str]:
    assert told(k8e("secret", "set", "client-test:token", stdin=VALUE.encode()))["ok"] is True
    yield "client-test:token"
    k8e("secret", "delete", "client-test")


def test_a_session_gets_a_secret_by_name_and_shows_only_the_variable(k8e: Run, secret: str) -> None:
    created = told(k8e("sandbox", "create", "--secret", f"TOKEN={secret}"))
    sid = str(created["session_id"])
    shown = told(k8e("sandbox", "get", sid))
    assert shown["secret_env_vars"] == ["TOKEN"]
    assert VALUE not in json.dumps(shown)
    answer = told(k8e("sandbox", "run", "--session-id", sid, 'test "$TOKEN" = ' + VALUE + " && echo same"))
    assert answer["stdout"] == "same\n"
    listed = told(k8e("secret", "list"))
    assert {"name": "client-test", "keys": ["token"]}.items() <= listed["secrets"][0].items()  # type: ignore[index]
    assert VALUE not in json.dumps(listed)


def test_a_missing_secret_is_bad_input_and_says_how_to_set_it(k8e: Run) -> None:
    done = k8e("sandbox", "create", "--secret", "TOKEN=client-none:token")
    assert done.returncode == 1
    assert "k8e secret set client-none:token" in str(told(done)["detail"])


def test_a_session_may_broker_one_and_then_has_its_host_on_the_list(k8e: Run, secret: str) -> None:
    created = told(k8e("sandbox", "create", "--broker", f"TOKEN={secret}@api.example/X-Api-Key"))
    sid = str(created["session_id"])
    shown = told(k8e("sandbox", "get", sid))
    assert "api.example" in shown["allowed_hosts"]  # type: ignore[operator]
    expected = {"host": "api.example", "header": "x-api-key", "env_var": "TOKEN", "secret_name": "client-test"}
    assert expected.items() <= shown["brokered_secrets"][0].items()  # type: ignore[index]
    answer = told(k8e("sandbox", "run", "--session-id", sid, 'printf %s "$TOKEN"; test -s "$SSL_CERT_FILE"'))
    assert (str(answer["stdout"])[:4], answer["exit_code"]) == ("k8e_", 0)


def test_nothing_that_the_server_keeps_or_says_holds_the_value(k8e: Run, server: Server, secret: str) -> None:
    created = told(k8e("sandbox", "create", "--secret", f"A={secret}", "--broker", f"B={secret}@api.example"))
    sid = str(created["session_id"])
    told(k8e("sandbox", "run", "--session-id", sid, 'echo "kept for comparison: $A"'))
    kept = [
        *server.data_dir.glob("engine/**/*"),
        *server.data_dir.glob("server/**/*"),
        *server.data_dir.glob("egress/members/*"),
        server.data_dir / "egress" / "log",
        server.data_dir / "log",
    ]
    written = {str(path): path.read_bytes() for path in kept if path.is_file()}
    assert any(b"kept for comparison" in content for content in written.values())
    assert [path for path, content in written.items() if VALUE.encode() in content] == []
    key = server.data_dir / "server" / "secrets.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert b"".join(path.read_bytes() for path in _readable(Path("/proc"))).find(VALUE.encode()) == -1


def _readable(proc: Path) -> Iterator[Path]:
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            path.read_bytes()
        except OSError:
            continue  # it has ended since
        yield path
