"""Which hosts and origins are believed."""

from __future__ import annotations

import pytest

from k8e.web.provenance import Provenance

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
        ("http://localhost:6274", True, True),
        ("https://127.0.0.1", True, True),
        ("http://[::1]:3000", True, True),
        ("https://app.example", False, True),
        ("null", False, True),
        ("http://app.example", False, False),
        ("https://app.example:8443", False, False),
        ("http://localhost.evil.example", False, False),
        ("http://localhost@evil.example", False, False),
        ("file://", False, False),
        ("", False, False),
    ],
)
def test_only_pages_of_this_machine_and_named_ones_may_call(
    origin: str | None, by_default: bool, when_configured: bool
) -> None:
    assert LOOPBACK.believes_origin(origin) is by_default
    assert OPEN.believes_origin(origin) is when_configured
