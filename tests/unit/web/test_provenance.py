"""Which hosts, origins and kinds of bodies are believed."""

from __future__ import annotations

import pytest

from k8e.web.provenance import Provenance, is_json

LOOPBACK = Provenance()
OPEN = Provenance(
    hosts=frozenset({"box.example"}), origins=frozenset({"https://app.example", "null"}), any_address=True
)


@pytest.mark.parametrize(
    ("host", "by_default", "when_configured"),
    [
        ("localhost:8811", True, True),
        ("LOCALHOST", True, True),
        ("localhost.", True, True),
        ("127.0.0.1:8811", True, True),
        ("127.8.9.1", True, True),
        ("[::1]:8811", True, True),
        ("box.example:443", False, True),
        ("BOX.example", False, True),
        ("10.1.2.3:8811", False, True),
        ("[2001:db8::1]", False, True),
        ("evil.example", False, False),
        ("localhost.evil.example", False, False),
        ("127.0.0.1.evil.example", False, False),
        ("evil.example:80@localhost", False, False),
        ("localhost, evil.example", False, False),
        ("localhost:notaport", False, False),
        ("", False, False),
        (None, False, False),
    ],
)
def test_only_names_of_this_machine_are_hosts(host: str | None, by_default: bool, when_configured: bool) -> None:
    assert LOOPBACK.believes_host(host) is by_default
    assert OPEN.believes_host(host) is when_configured


@pytest.mark.parametrize(
    ("origin", "by_default", "when_configured"),
    [
        (None, True, True),
        ("http://localhost:8811", True, True),
        ("http://localhost:3000", False, False),
        ("http://localhost", False, False),
        ("https://localhost:8811", False, False),
        ("http://127.0.0.1:8811", False, False),
        ("https://app.example", False, True),
        ("null", False, True),
        ("http://app.example", False, False),
        ("https://app.example:8443", False, False),
        ("http://localhost.evil.example", False, False),
        ("http://localhost:8811@evil.example", False, False),
        ("file://", False, False),
        ("", False, False),
    ],
)
def test_only_our_own_pages_and_named_ones_may_call(
    origin: str | None, by_default: bool, when_configured: bool
) -> None:
    assert LOOPBACK.believes_origin(origin, "localhost:8811") is by_default
    assert OPEN.believes_origin(origin, "localhost:8811") is when_configured


@pytest.mark.parametrize(
    ("host", "origin", "is_believed"),
    [
        ("[::1]:8811", "http://[::1]:8811", True),
        ("LOCALHOST:8811", "http://localhost:8811", True),
        # Its page has the name that the host has; that name is not this machine's.
        ("box.example", "http://box.example", False),
        ("10.1.2.3:8811", "http://10.1.2.3:8811", False),
        (None, "http://None", False),
    ],
)
def test_our_own_page_is_one_on_the_loopback(host: str | None, origin: str, is_believed: bool) -> None:
    assert OPEN.believes_origin(origin, host) is is_believed


@pytest.mark.parametrize(
    ("kind", "is_ours"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/a2a+json", True),
        ("text/plain", False),
        ("text/plain; application/json", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=application/json", False),
        ("", False),
        (None, False),
    ],
)
def test_only_what_says_that_it_is_json_is(kind: str | None, is_ours: bool) -> None:
    assert is_json(kind) is is_ours
