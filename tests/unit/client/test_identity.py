"""Keys, certificates, administrators and approvals, through the SDK."""

from __future__ import annotations

import dataclasses
import datetime
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.client import (
    Approval,
    AsyncSandboxClient,
    Conflict,
    Denied,
    NotFound,
    SandboxClient,
    ServerFailed,
    Unauthenticated,
    Unreachable,
)
from k8e.client.discovery import Target
from k8e.identity.authority import Authority
from tests.support.door import open_door


@pytest.fixture
def admin(client: SandboxClient) -> SandboxClient:
    return client


@pytest.fixture
def key(admin: SandboxClient) -> Iterator[Callable[..., str]]:
    """Makes a key and returns its text."""
    made: list[str] = []

    def make(name: str, *, role: str = "user", owner: str = "") -> str:
        made.append(name)
        return admin.create_api_key(name, role=role, owner=owner).key

    yield make
    for name in {each.name for each in admin.api_keys()} & set(made):
        admin.delete_api_key(name)


def with_key(target: Target, key: str) -> SandboxClient:
    return SandboxClient(target=dataclasses.replace(target, api_key=key))


def test_the_server_says_whom_it_takes_a_client_for(target: Target, key: Callable[..., str]) -> None:
    with SandboxClient(target=target) as client:
        assert (client.whoami().role, client.whoami().via) == ("admin", "unix" if target.socket else "loopback")
    with with_key(target, key("phone")) as client:
        caller = client.whoami()
        assert (caller.owner, caller.identity, caller.role, caller.via) == ("key:phone", "key:phone", "user", "key")


def test_a_wrong_key_is_refused_and_says_what_to_do(target: Target) -> None:
    with with_key(target, "0" * 64) as client, pytest.raises(Unauthenticated, match="ask an administrator"):
        client.whoami()


def test_keys_are_listed_without_their_texts_and_end_when_deleted(
    target: Target, admin: SandboxClient, key: Callable[..., str]
) -> None:
    text = key("short", role="approver", owner="uid:7")
    (listed,) = [each for each in admin.api_keys() if each.name == "short"]
    assert (listed.role, listed.owner, listed.expired) == ("approver", "uid:7", False)
    assert text not in repr(admin.api_keys())
    with with_key(target, text) as client:
        assert client.whoami().role == "approver"
        admin.delete_api_key("short")
        with pytest.raises(Unauthenticated):
            client.whoami()
    with pytest.raises(NotFound):
        admin.delete_api_key("short")


def test_only_an_administrator_manages_keys_and_speaks_for_others(
    target: Target, admin: SandboxClient, key: Callable[..., str]
) -> None:
    with with_key(target, key("mallory")) as client, pytest.raises(Denied):
        client.create_api_key("more")
    text = key("carol")
    with with_key(target, text) as carol:
        theirs = carol.create_session()
        assert carol.get(theirs).owner == "key:carol"
        with pytest.raises(NotFound):
            admin.get(theirs)
        with SandboxClient(target=dataclasses.replace(target, owner="key:carol")) as speaking:
            assert speaking.get(theirs).session_id == theirs
        with (
            SandboxClient(target=dataclasses.replace(target, api_key=text, owner="uid:0")) as pretending,
            pytest.raises(Denied, match="administrator"),
        ):
            pretending.sessions()
        assert theirs in {each.session_id for each in admin.sessions(all_owners=True)}
        assert theirs not in {each.session_id for each in admin.sessions()}
        carol.destroy_session(theirs)


def test_a_login_leaves_a_certificate_that_later_clients_use_without_the_key(
    target: Target, key: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_key(target, key("laptop")) as client:
        done = client.login("my laptop", tmp_path / "kept")
    assert (done.endpoint, done.valid_days) == (target.endpoint, 90)
    assert oct((tmp_path / "kept" / "client.key").stat().st_mode & 0o777) == "0o600"
    monkeypatch.setenv("K8E_SANDBOX_CERT_DIR", str(tmp_path / "kept"))
    with SandboxClient(target.endpoint) as client:
        assert (client.whoami().identity, client.whoami().via) == ("key:laptop", "certificate")
        assert client.login(cert_dir=tmp_path / "renewed").valid_days == 90


def test_a_login_is_kept_where_its_profile_looks(
    target: Target, key: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text(f"profiles: {{box: {{endpoint: '{target.endpoint}', cert_dir: {tmp_path / 'box'}}}}}")
    monkeypatch.setenv("K8E_SANDBOX_CONFIG", str(profiles))
    monkeypatch.setenv("K8E_DATA_DIR", target.found)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with SandboxClient(profile="box", api_key=key("tablet")) as client:
        assert client.login().cert_dir == str(tmp_path / "box")
    with SandboxClient(profile="box") as client:
        assert (client.whoami().identity, client.whoami().via) == ("key:tablet", "certificate")
    assert not (tmp_path / "home").exists()


class Misled(AsyncSandboxClient):
    """Of a server that certifies with a CA that nobody trusts yet."""

    other: bytes

    async def _call(self, method: Any, request: Any, *, timeout_s: float | None) -> Any:
        answer = await super()._call(method, request, timeout_s=timeout_s)
        if isinstance(answer, pb.LoginResponse):
            answer.ca_cert = self.other.decode()
        return answer


@pytest.mark.anyio
async def test_a_login_is_refused_where_the_ca_is_not_the_trusted_one(
    target: Target, key: Callable[..., str], tmp_path: Path
) -> None:
    other = Authority.open(tmp_path / "other", now=datetime.datetime.now(datetime.UTC)).pem
    text = key("watch")
    both = dataclasses.replace(target, api_key=text, roots=other + (target.roots or b""))
    async with AsyncSandboxClient(target=both) as client:
        await client.login(cert_dir=tmp_path / "kept")  # the control: one of several that are trusted
    assert (tmp_path / "kept" / "ca.crt").read_bytes() == target.roots
    async with Misled(target=dataclasses.replace(target, api_key=text)) as client:
        client.other = other
        with pytest.raises(ServerFailed, match="another CA"):
            await client.login(cert_dir=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_login_without_a_key_says_what_it_needs(admin: SandboxClient, tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated, match="K8E_SANDBOX_APIKEY"):
        admin.login(cert_dir=tmp_path)


def test_somebody_else_approves_and_the_asker_cannot(
    target: Target, admin: SandboxClient, key: Callable[..., str]
) -> None:
    owner = admin.whoami().owner
    with with_key(target, key("human", role="approver", owner=owner)) as human, admin.create() as session:
        asked = session.confirm("delete everything", timeout=0)
        assert (asked.status, asked.approved) == ("pending", False)
        assert asked.approval_id in {each.approval_id for each in human.approvals()}
        with pytest.raises(Denied):
            admin.approve(asked.approval_id)
        assert admin.confirmed(asked.approval_id, timeout=0.05).status == "pending"

        answers: list[Approval] = []
        waiting = threading.Thread(target=lambda: answers.append(admin.confirmed(asked.approval_id, timeout=60)))
        waiting.start()
        human.approve(asked.approval_id, reason="looks right")
        waiting.join()
        (answer,) = answers
        assert (answer.approved, answer.decided_by, answer.reason) == (True, "key:human", "looks right")
        with pytest.raises(Conflict):
            human.approve(asked.approval_id, approved=False)

        second = session.confirm("again", timeout=0)
        human.approve(second.approval_id, approved=False)
        assert admin.confirmed(second.approval_id).status == "rejected"
        assert {each.status for each in admin.approvals(all=True)} >= {"approved", "rejected"}


@pytest.mark.anyio
async def test_this_machine_is_trusted_by_its_ca_under_any_name_and_by_no_other_ca(data_dir: Path) -> None:
    async with open_door(data_dir / "one", host="127.0.0.9") as door:
        assert door.target.endpoint.startswith("127.0.0.9:")
        async with AsyncSandboxClient(target=door.target) as client:
            assert (await client.whoami()).role == "admin"
        authority = Authority.open(data_dir / "other", now=datetime.datetime.now(datetime.UTC))
        stranger = dataclasses.replace(door.target, roots=authority.pem)
        async with AsyncSandboxClient(target=stranger) as client:
            with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                await client.whoami()
