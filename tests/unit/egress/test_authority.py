"""A sandbox's own authority: what it signs is believed by those who trust it, and by nobody else."""

from __future__ import annotations

import ssl

import pytest

from k8e.egress.authority import Authority


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A whole TLS handshake in memory. Raises: ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)


def trusting(pem: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=pem)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    return context


def test_a_client_that_trusts_it_accepts_the_host() -> None:
    authority = Authority.new()
    long = "a" * 60 + "." + "b" * 60 + ".example"
    for name in ("api.example", long):
        handshake(authority.context(name), trusting(authority.certificate), name)
    assert authority.context("api.example") is authority.context("api.example")


def test_a_restart_keeps_what_is_trusted() -> None:
    authority = Authority.new()
    again = Authority.load(authority.dump())
    assert again.certificate == authority.certificate
    handshake(again.context("api.example"), trusting(authority.certificate), "api.example")


def test_another_sandbox_and_another_name_do_not_accept_it() -> None:
    mine, other = Authority.new(), Authority.new()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(mine.context("api.example"), trusting(other.certificate), "api.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(mine.context("api.example"), trusting(mine.certificate), "other.example")


def test_what_the_sandbox_is_given_holds_no_key() -> None:
    authority = Authority.new()
    assert "PRIVATE KEY" in authority.dump()
    assert "PRIVATE KEY" not in authority.certificate
    with pytest.raises(ValueError, match=r"."):
        Authority.load(authority.certificate)
