"""What a call presents decides alone; only a call that presents nothing is whoever the kernel says."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from k8e.errors import Denied, Unauthenticated
from k8e.identity import Doorkeeper, Office, Presented, Role, SocketTable, TcpPeer, UnixPeer, local_caller
from tests.support.door import Clock
from tests.support.requests import request_pem

OPERATOR = os.geteuid()
ME = UnixPeer(OPERATOR)
FAR = TcpPeer(("192.0.2.1", 1), ("192.0.2.2", 2))


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office.open(tmp_path, clock=Clock())


@pytest.fixture
def keeper(office: Office) -> Doorkeeper:
    return office.doorkeeper(sockets=None, operator=OPERATOR)


def test_a_key_wins_over_the_connection(office: Office, keeper: Doorkeeper) -> None:
    key, text = office.keys.create("phone", role=Role.APPROVER, owner="uid:1000")
    for peer in (ME, FAR, None):
        caller = keeper.caller(Presented(peer=peer, authorization=f"Bearer {text}"))
        assert (caller.owner, caller.identity, caller.role, caller.via, caller.key_id) == (
            "uid:1000", "key:phone", Role.APPROVER, "key", key.key_id,
        )  # fmt: skip


@pytest.mark.parametrize(
    "form", ["Bearer {0}x", "Bearer", "Bearer ", "{0}", "Basic {0}", "Bearer {0}, Bearer {0}", " "]
)
def test_a_wrong_credential_never_falls_back_to_the_uid(office: Office, keeper: Doorkeeper, form: str) -> None:
    _, text = office.keys.create("laptop")
    assert keeper.caller(Presented(peer=ME)) == local_caller(OPERATOR, operator=OPERATOR, via="unix")
    assert keeper.caller(Presented(peer=ME, authorization=f"bearer {text}")).identity == "key:laptop"
    with pytest.raises(Unauthenticated):
        keeper.caller(Presented(peer=ME, authorization=form.format(text)))


def test_a_certificate_is_its_keys_caller_until_the_key_goes(office: Office, keeper: Doorkeeper) -> None:
    key, _ = office.keys.create("laptop")
    pem = office.certificates.issue(request_pem(ec.generate_private_key(ec.SECP256R1())), key, device_name="d")
    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    shown = Presented(peer=TcpPeer(("127.0.0.1", 1), ("127.0.0.1", 2), der))
    caller = keeper.caller(shown)
    assert (caller.owner, caller.identity, caller.via) == ("key:laptop", "key:laptop", "certificate")
    other, _ = office.keys.create("other")
    assert other.caller("key").owner != caller.owner
    office.keys.delete("laptop")
    with pytest.raises(Unauthenticated, match="log in again"):
        keeper.caller(shown)


def test_a_stranger_is_told_what_to_present(keeper: Doorkeeper) -> None:
    with pytest.raises(Unauthenticated, match="Bearer"):
        keeper.caller(Presented(peer=FAR))
    with pytest.raises(Unauthenticated):
        keeper.caller(Presented(peer=None))


def test_the_kernels_word_can_be_switched_off_for_loopback(office: Office) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, closing(SocketTable()) as sockets:
        client = socket.create_connection(listener.getsockname())
        served, _ = listener.accept()
        with client, served:
            peer = TcpPeer(served.getpeername(), served.getsockname())
            asked = office.doorkeeper(sockets=sockets, operator=OPERATOR)
            assert asked.caller(Presented(peer=peer)).identity == f"uid:{OPERATOR}"
            with pytest.raises(Unauthenticated):
                office.doorkeeper(sockets=None, operator=OPERATOR).caller(Presented(peer=peer))


def test_only_an_administrator_speaks_for_another_owner(office: Office, keeper: Doorkeeper) -> None:
    _, plain = office.keys.create("plain")
    _, chief = office.keys.create("chief", role=Role.ADMIN)
    for shown in (Presented(peer=ME, owner="key:plain"),
                  Presented(peer=FAR, owner="key:plain", authorization=f"Bearer {chief}")):  # fmt: skip
        admitted = keeper.admit(shown)
        assert (admitted.owner, admitted.caller.role) == ("key:plain", Role.ADMIN)
        assert admitted.caller.owner != "key:plain"
    assert keeper.admit(Presented(peer=FAR, authorization=f"Bearer {plain}")).owner == "key:plain"
    for owner in ("uid:0", "key:plain"):
        with pytest.raises(Denied):
            keeper.admit(Presented(peer=FAR, owner=owner, authorization=f"Bearer {plain}"))
    with pytest.raises(Denied):
        keeper.admit(Presented(peer=UnixPeer(OPERATOR + 1), owner=f"uid:{OPERATOR}"))
    for owner in ("x" * 300, "a\nb"):
        with pytest.raises(Denied):
            keeper.admit(Presented(peer=ME, owner=owner))
