"""Who is asking and where: keys, logins, profiles, `connect`, `whoami`, and approvals by somebody else."""

from __future__ import annotations

import asyncio
import datetime
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from k8e.client import certificates, requesting
from k8e.client.errors import InvalidRequest, Unsupported
from k8e.identity.authority import Authority
from tests.support.door import open_door

Told = tuple[int, dict[str, object]]
Run = Callable[..., Told]
DAY_S = 86400


@pytest.fixture
def k8e(environ: dict[str, str]) -> Run:
    """`k8e …`: its exit code and the one line it prints."""

    def run(*words: str, **extra: str) -> Told:
        argv = [sys.executable, "-m", "k8e.cli.main", *words]
        done = subprocess.run(argv, capture_output=True, env=environ | extra, timeout=60, check=False)
        assert b"Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


@pytest.fixture
def endpoint(server: Path) -> str:
    doors = json.loads((server / "server" / "server.json").read_text())["doors"]
    return str(doors["grpc"]).partition("://")[2]


@pytest.fixture
def key(k8e: Run, request: pytest.FixtureRequest) -> str:
    """A key for somebody who is not a user of this machine."""
    code, made = k8e("sandbox-apikey", "create", f"key-{abs(hash(request.node.name)) % 10**9}")
    assert code == 0, made
    return str(made["key"])


@pytest.fixture
def elsewhere(endpoint: str, tmp_path: Path) -> dict[str, str]:
    """A machine that knows the endpoint and nothing else."""
    return {"K8E_DATA_DIR": str(tmp_path / "nothing-here"), "K8E_SANDBOX_ENDPOINT": endpoint}


@pytest.fixture
def fingerprint(k8e: Run) -> str:
    return str(k8e("server", "status")[1]["ca_fingerprint"])


def test_the_connection_says_who_one_is_until_a_key_does(k8e: Run, key: str) -> None:
    assert k8e("sandbox", "whoami")[1]["via"] == "unix"
    code, who = k8e("sandbox", "whoami", K8E_SANDBOX_APIKEY=key)
    assert (code, who["via"], who["role"]) == (0, "key", "user")
    code, who = k8e("sandbox", "--apikey", "0" * 64, "whoami")
    assert (code, who["error"]) == (2, "unauthenticated")


@pytest.mark.parametrize("key", ["a b", "a\nk8e-owner: uid:0", "ключ"])
def test_a_key_that_could_be_more_than_a_key_is_not_sent(k8e: Run, key: str) -> None:
    assert k8e("sandbox", "whoami", K8E_SANDBOX_APIKEY=key)[1]["error"] == "invalid request"


def test_an_administrator_may_speak_for_another_owner(k8e: Run, key: str) -> None:
    owner = str(k8e("sandbox", "whoami", K8E_SANDBOX_APIKEY=key)[1]["owner"])
    made = str(k8e("sandbox", "create", "--owner", owner)[1]["session_id"])
    assert k8e("sandbox", "get", made)[0] == 1  # not the administrator's own
    assert k8e("sandbox", "get", made, K8E_SANDBOX_APIKEY=key)[1]["session_id"] == made
    denied = k8e("sandbox", "get", made, "--owner", "uid:0", K8E_SANDBOX_APIKEY=key)
    assert (denied[0], denied[1]["error"]) == (2, "not allowed")


def test_a_login_with_the_right_fingerprint_leaves_a_certificate_that_works_alone(
    k8e: Run, key: str, elsewhere: dict[str, str], fingerprint: str, endpoint: str, tmp_path: Path
) -> None:
    refused = k8e("sandbox", "whoami", **elsewhere)
    assert refused[0] == 2  # the control: without a login nothing is trusted
    shown = ":".join(fingerprint[at : at + 2] for at in range(0, 64, 2)).upper()
    words = ["sandbox", "login", "--device-name", "desk", "--ca-fingerprint", shown]
    code, told = k8e(*words, K8E_SANDBOX_APIKEY=key, **elsewhere)
    assert (code, told["ok"], told["endpoint"]) == (0, True, endpoint)
    home = tmp_path / ".k8e" / "sandbox"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.iterdir() if path.is_file()}
    assert modes == {"ca.crt": 0o644, "client.crt": 0o644, "client.key": 0o600, "endpoint": 0o644}
    assert (home / "client.key").read_bytes().startswith(b"-----BEGIN EC PRIVATE KEY-----")
    assert certificates.days_left((home / "client.crt").read_bytes()) > 30
    code, who = k8e("sandbox", "whoami", **elsewhere)
    assert (code, who["via"]) == (0, "certificate")


def test_a_login_to_somebody_else_sends_no_key(k8e: Run, key: str, elsewhere: dict[str, str], tmp_path: Path) -> None:
    words = ["sandbox", "login", "--ca-fingerprint", "ab" * 32]
    code, told = k8e(*words, K8E_SANDBOX_APIKEY=key, **elsewhere)
    assert (code, told["error"], told["ok"]) == (2, "not allowed", False)
    assert "no key was sent" in str(told["detail"])
    assert not (tmp_path / ".k8e" / "sandbox" / "client.key").exists()


def test_first_use_is_trusted_only_when_one_says_so(k8e: Run, key: str, elsewhere: dict[str, str]) -> None:
    code, told = k8e("sandbox", "login", K8E_SANDBOX_APIKEY=key, **elsewhere)
    assert (code, "--ca-fingerprint" in str(told["detail"])) == (2, True)
    assert k8e("sandbox", "login", "--trust-first-use", K8E_SANDBOX_APIKEY=key, **elsewhere)[0] == 0


def test_a_certificate_that_ends_soon_is_renewed_by_using_it(
    k8e: Run, key: str, elsewhere: dict[str, str], tmp_path: Path, environ: dict[str, str]
) -> None:
    k8e("sandbox", "login", "--trust-first-use", K8E_SANDBOX_APIKEY=key, **elsewhere)
    file = tmp_path / ".k8e" / "sandbox" / "client.crt"
    first = file.read_bytes()
    assert k8e("sandbox", "whoami", **elsewhere)[0] == 0
    assert file.read_bytes() == first  # the control: it is good for long yet
    code = (
        "import sys\nfrom k8e.cli import reaching\nreaching.RENEW_DAYS = 100000.0\n"
        "from k8e.cli.main import main\nsys.exit(main(['sandbox', 'whoami'], prog='k8e'))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environ | elsewhere, capture_output=True, check=True)
    assert json.loads(done.stdout)["via"] == "certificate"
    assert file.read_bytes() != first
    assert k8e("sandbox", "whoami", **elsewhere)[0] == 0


@pytest.mark.anyio
async def test_this_machine_is_trusted_by_its_ca_under_any_name_and_by_no_other_ca(
    data_dir: Path, environ: dict[str, str]
) -> None:
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "whoami"]
    async with open_door(data_dir / "one", host="127.0.0.9") as door:
        authority = Authority.open(data_dir / "other", now=datetime.datetime.now(datetime.UTC))
        for ca, expected in ((door.credentials.ca, 0), (authority.pem, 2)):
            (data_dir / "ca").write_bytes(ca)
            named = {"K8E_SANDBOX_ENDPOINT": door.target.endpoint, "K8E_SANDBOX_CERT": str(data_dir / "ca")}
            process = await asyncio.create_subprocess_exec(*argv, env=environ | named, stdout=subprocess.PIPE)
            told, _ = await process.communicate()
            assert (process.returncode, b"127.0.0.9" in told) == (expected, expected == 2)


def test_connect_checks_the_server_and_uses_it_from_now_on(
    k8e: Run, key: str, endpoint: str, fingerprint: str, tmp_path: Path
) -> None:
    nowhere = {"K8E_DATA_DIR": str(tmp_path / "nothing-here")}
    words = ["sandbox", "connect", "--endpoint", endpoint, "--ca-fingerprint", fingerprint]
    code, told = k8e(*words, K8E_SANDBOX_APIKEY=key, **nowhere)
    assert (code, told["mode"], told["endpoint"]) == (0, "remote", endpoint)
    config = tmp_path / ".k8e" / "sandbox" / "config.json"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert k8e("sandbox", "whoami", **nowhere)[1]["via"] == "certificate"
    assert k8e("sandbox", "connect", "--reset-certs", "--skip-verify", **nowhere)[0] == 0
    assert not (config.parent / "client.key").exists()


def test_connect_stores_nothing_when_nobody_answers(k8e: Run, tmp_path: Path) -> None:
    code, told = k8e("sandbox", "connect", "--endpoint", "127.0.0.1:1")
    assert (code, told["ok"]) == (2, False)
    assert not (tmp_path / ".k8e" / "sandbox" / "config.json").exists()
    assert k8e("sandbox", "connect", "--endpoint", "127.0.0.1:1", "--skip-verify")[0] == 0
    assert json.loads((tmp_path / ".k8e" / "sandbox" / "config.json").read_text())["endpoint"] == "127.0.0.1:1"


def test_profiles_are_added_chosen_and_removed(k8e: Run, endpoint: str, tmp_path: Path) -> None:
    assert k8e("sandbox", "profile", "add", "work", endpoint)[0] == 0
    assert k8e("sandbox", "profile", "add", "nowhere", "127.0.0.1:1", "--device-name", "d")[0] == 0
    file = tmp_path / ".k8e" / "sandbox" / "profiles.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert k8e("sandbox", "--profile", "nowhere", "whoami")[0] == 2
    assert k8e("sandbox", "--profile", "work", "whoami")[1]["via"] == "loopback"
    assert k8e("sandbox", "whoami", K8E_SANDBOX_PROFILE="work")[1]["via"] == "loopback"
    assert k8e("sandbox", "profile", "use", "work")[1]["current_profile"] == "work"
    assert k8e("sandbox", "whoami")[1]["via"] == "loopback"
    listed = k8e("sandbox", "profile", "list")[1]["profiles"]
    assert isinstance(listed, list)
    assert [(each["name"], each["current"]) for each in listed] == [("nowhere", False), ("work", True)]
    assert k8e("sandbox", "profile", "remove", "work")[0] == 0
    assert k8e("sandbox", "whoami")[1]["via"] == "unix"
    assert k8e("sandbox", "profile", "remove", "work")[0] == 1
    assert k8e("sandbox", "--profile", "work", "whoami")[1]["error"] == "invalid request"
    file.write_text("profiles: [1, 2")
    assert k8e("sandbox", "whoami")[1]["error"] == "invalid request"


@pytest.mark.parametrize(
    ("address", "taken"),
    [
        ("box.example:50051", True),
        ("grpcs://box.example:50051/", True),
        ("[::1]:50051", True),
        ("https://box.example", False),
        ("box.example", False),
        ("box.example:port", False),
        ("https://box.example/a:1", False),
    ],
)
def test_a_profile_has_a_host_and_a_port(k8e: Run, address: str, taken: bool) -> None:
    code, told = k8e("sandbox", "profile", "add", "box", address)
    assert (code, "host:port, as in" in str(told.get("detail"))) == ((0, False) if taken else (1, True))


def test_profiles_of_former_clients_are_read_and_never_written(
    k8e: Run, environ: dict[str, str], endpoint: str, tmp_path: Path
) -> None:
    former = tmp_path / ".k8e" / "config.yaml"
    former.parent.mkdir()
    former.write_text(f"current_profile: old\nprofiles:\n  old: {{endpoint: '{endpoint}'}}\n  b: {{endpoint: 'b:1'}}\n")
    before = former.read_bytes()
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "whoami"]
    done = subprocess.run(argv, capture_output=True, env=environ, timeout=60, check=True)
    assert (json.loads(done.stdout)["via"], str(former) in done.stderr.decode()) == ("loopback", True)
    assert k8e("sandbox", "whoami", K8E_SANDBOX_CONFIG=str(tmp_path / "none"))[1]["via"] == "unix"
    assert k8e("sandbox", "profile", "use", "old")[0] == 0
    done = subprocess.run(argv, capture_output=True, env=environ, timeout=60, check=True)
    assert (json.loads(done.stdout)["via"], done.stderr) == ("loopback", b"")
    assert k8e("sandbox", "profile", "remove", "old")[0] == 0
    assert k8e("sandbox", "whoami")[1]["via"] == "unix"  # what is kept now wins
    assert former.read_bytes() == before


def test_the_order_is_flag_environment_profile_config(k8e: Run, endpoint: str, tmp_path: Path) -> None:
    config = tmp_path / ".k8e" / "sandbox" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"mode": "remote", "endpoint": "127.0.0.1:1"}))
    assert "127.0.0.1:1" in str(k8e("sandbox", "whoami")[1]["detail"])
    k8e("sandbox", "profile", "add", "default", "127.0.0.1:2")
    assert "127.0.0.1:2" in str(k8e("sandbox", "whoami")[1]["detail"])
    assert "127.0.0.1:3" in str(k8e("sandbox", "whoami", K8E_SANDBOX_ENDPOINT="127.0.0.1:3")[1]["detail"])
    assert k8e("sandbox", "--endpoint", endpoint, "whoami", K8E_SANDBOX_ENDPOINT="127.0.0.1:3")[0] == 0


def test_somebody_else_approves_and_the_asker_cannot(k8e: Run, environ: dict[str, str]) -> None:
    mine = str(k8e("sandbox", "whoami")[1]["owner"])
    _, phone = k8e("sandbox-apikey", "create", "phone-1", "--role", "approver", "--owner", mine)
    approver = {"K8E_SANDBOX_APIKEY": str(phone["key"])}
    session_id = str(k8e("sandbox", "create")[1]["session_id"])
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "confirm", session_id, "wipe the disk"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        prompt, approve = process.stderr.readline(), process.stderr.readline()
        assert "wipe the disk" in prompt
        approval_id = approve.split()[-1]
        own = k8e("sandbox", "approve", approval_id)
        assert (own[0], own[1]["ok"], own[1]["error"]) == (2, False, "not allowed")
        waiting = k8e("sandbox", "approvals", **approver)[1]["approvals"]
        assert isinstance(waiting, list)
        assert [each["approval_id"] for each in waiting] == [approval_id]
        assert k8e("sandbox", "approve", approval_id, "--reason", "fine", **approver)[1]["ok"] is True
        out, _ = process.communicate(timeout=60)
    told = json.loads(out)
    assert (process.returncode, told["approved"], told["reason"]) == (0, True, "fine")
    assert k8e("sandbox", "run", "true", **approver)[1]["error"] == "not allowed"


def test_a_rejection_and_silence_are_both_a_no(k8e: Run) -> None:
    mine = str(k8e("sandbox", "whoami")[1]["owner"])
    _, phone = k8e("sandbox-apikey", "create", "phone-2", "--role", "approver", "--owner", mine)
    session_id = str(k8e("sandbox", "create")[1]["session_id"])
    code, asked = k8e("sandbox", "confirm", session_id, "x", "--no-wait")
    assert (code, asked["approved"]) == (0, False)
    approval_id = str(asked["approval_id"])
    words = ["sandbox", "approve", approval_id, "--reject"]
    assert k8e(*words, K8E_SANDBOX_APIKEY=str(phone["key"]))[0] == 0
    silent = k8e("sandbox", "confirm", session_id, "y", "--timeout", "0.2")
    assert (silent[0], silent[1]["approved"], silent[1]["status"]) == (1, False, "pending")
    assert k8e("sandbox", "confirm", "sess-none", "z")[1]["error"] == "not found"


@pytest.mark.parametrize("way", ["library", "program"])
def test_a_key_and_its_request_are_made_by_either(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "program":
        monkeypatch.setitem(sys.modules, "cryptography", None)
    key, request = requesting.key_and_request("desk/of=somebody")
    assert key.startswith(b"-----BEGIN EC PRIVATE KEY-----")
    done = subprocess.run(
        ["openssl", "req", "-verify", "-noout", "-text"], input=request.encode(), capture_output=True, check=True
    )
    assert b"P-256" in done.stdout


def test_without_either_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unsupported, match="pip install cryptography"):
        requesting.key_and_request("desk")


def test_dates_are_read_off_a_certificate(server: Path) -> None:
    pem = (server / "server" / "tls" / "sandbox-server.crt").read_bytes()
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-enddate"], input=pem, capture_output=True, check=True
    ).stdout.decode()
    import calendar
    import time

    ends = calendar.timegm(time.strptime(shown.strip(), "notAfter=%b %d %H:%M:%S %Y GMT"))
    assert certificates.days_left(pem, now_s=ends - 3 * DAY_S) == pytest.approx(3)
    assert certificates.pem(certificates.der(pem)) in pem.replace(b"\r", b"")
    with pytest.raises(InvalidRequest):
        certificates.der(b"no certificate")
