"""Secrets by the command line, on the real server: used, listed, and found nowhere."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.commands import Run, told
from tests.support.servers import Server

VALUE = f"whoever-finds-this-has-found-a-leak-{uuid.uuid4()}"
"""This run's own: another one on this machine shows its value to its own commands."""
PATIENCE_S = 60.0


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
    (found,) = [each for each in listed["secrets"] if each["name"] == "client-test"]  # type: ignore[attr-defined]
    assert found["keys"] == ["token"]
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
    deadline = time.monotonic() + PATIENCE_S
    while b"kept for comparison" not in b"".join((written := _kept(server.data_dir)).values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [path for path, content in written.items() if VALUE.encode() in content] == []
    key = server.data_dir / "server" / "secrets.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert not any(VALUE.encode() in content for content in _contents(Path("/proc").glob("[0-9]*/cmdline")).values())


def _kept(data_dir: Path) -> dict[str, bytes]:
    """What the server keeps and says now."""
    below = [data_dir / each for each in ("engine", "server", "egress/members")]
    found = [Path(top, name) for each in below for top, _, names in os.walk(each) for name in names]
    return _contents([*filter(Path.is_file, found), data_dir / "egress" / "log", data_dir / "log"])


def _contents(paths: Iterable[Path]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in paths:
        with contextlib.suppress(OSError):  # it is gone since
            found[str(path)] = path.read_bytes()
    return found
