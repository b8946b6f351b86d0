"""`k8e sandbox-apikey …` as whole processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from k8e.cli.apikeys import ttl_seconds
from k8e.client.errors import InvalidRequest

Run = Callable[..., "tuple[int, dict[str, object]]"]


@pytest.fixture
def k8e(environ: dict[str, str]) -> Run:
    def run(*words: str, **extra: str) -> tuple[int, dict[str, object]]:
        argv = [sys.executable, "-m", "k8e.cli.main", *words]
        done = subprocess.run(argv, capture_output=True, env=environ | extra, timeout=60, check=False)
        return done.returncode, json.loads(done.stdout)

    return run


def test_a_key_is_shown_once_and_then_only_listed(k8e: Run) -> None:
    code, made = k8e("sandbox-apikey", "create", "laptop")
    assert code == 0
    assert list(made)[:6] == ["name", "key", "e2b_key", "ttl_days", "created_at", "expires_at"]
    assert (made["ttl_days"], made["role"], made["owner"]) == (30, "user", "key:laptop")
    assert made["e2b_key"] == f"e2b_{made['key']}"
    assert len(str(made["key"])) == 64
    code, listed = k8e("sandbox-apikey", "list")
    row = {name: made[name] for name in ("name", "ttl_days", "created_at", "expires_at", "role", "owner")}
    assert {**row, "expired": False} in listed["keys"]  # type: ignore[operator]  # a list
    assert str(made["key"]) not in json.dumps(listed)


def test_a_deleted_key_opens_nothing(k8e: Run) -> None:
    _, made = k8e("sandbox-apikey", "create", "short", "--ttl", "12h")
    asking = {"K8E_SANDBOX_APIKEY": str(made["key"])}
    assert made["ttl_days"] == 0.5
    assert k8e("sandbox", "sessions", **asking)[0] == 0
    assert k8e("sandbox-apikey", "delete", "short") == (0, {"ok": True, "name": "short"})
    code, told = k8e("sandbox", "sessions", **asking)
    assert (code, told["error"]) == (2, "unauthenticated")
    assert k8e("sandbox-apikey", "delete", "short")[0] == 1


def test_only_an_administrator_makes_keys(k8e: Run) -> None:
    _, made = k8e("sandbox-apikey", "create", "plain")
    code, told = k8e("sandbox-apikey", "create", "more", K8E_SANDBOX_APIKEY=str(made["key"]))
    assert (code, told["error"]) == (2, "not allowed")
    _, chief = k8e("sandbox-apikey", "create", "chief", "--role", "admin", "--ttl", "never")
    assert (chief["ttl_days"], chief["expires_at"]) == (0, 0)
    assert k8e("sandbox-apikey", "create", "more", K8E_SANDBOX_APIKEY=str(chief["key"]))[0] == 0


def test_a_taken_or_impossible_name_is_bad_input(k8e: Run) -> None:
    assert k8e("sandbox-apikey", "create", "twice")[0] == 0
    assert k8e("sandbox-apikey", "create", "twice")[1]["error"] == "conflict"
    code, told = k8e("sandbox-apikey", "create", "../etc")
    assert (code, told["error"]) == (1, "invalid request")


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2592000), ("7", 604800), ("1h", 3600), ("never", 0)])
def test_a_time_to_live_in_days_or_hours(text: str, seconds: int) -> None:
    assert ttl_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1w", "1.5d", "9999999", "d"])
def test_another_time_to_live_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="ttl"):
        ttl_seconds(text)
