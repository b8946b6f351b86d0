"""Names in ClientHellos, real and hostile."""

from __future__ import annotations

import ssl
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from k8e.egress.hello import LIMIT, Hello, HelloReader, Kind
from tests.support.hellos import client_hello, in_records


def _read(data: bytes, piece: int = 1 << 20) -> Hello | None:
    reader = HelloReader()
    hello = None
    for start in range(0, len(data), piece):
        hello = reader.feed(data[start : start + piece])
        if hello is not None:
            return hello
    return hello


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_name_is_read_from_every_version(version: ssl.TLSVersion) -> None:
    assert _read(client_hello("one.example", version)) == Hello(Kind.TLS, "one.example")
    assert _read(client_hello(None, version)) == Hello(Kind.TLS, None)


@pytest.mark.parametrize("piece", [1, 2, 5, 100])
def test_it_may_come_in_any_pieces(piece: int) -> None:
    data = client_hello("one.example")
    assert _read(data, piece) == Hello(Kind.TLS, "one.example")
    assert _read(data[:-1], piece) is None


@pytest.mark.parametrize("size", [1, 7, 60])
def test_it_may_be_split_over_many_records(size: int) -> None:
    assert _read(in_records(client_hello("one.example"), size)) == Hello(Kind.TLS, "one.example")


def test_unknown_extensions_and_ciphers_do_not_hide_the_name() -> None:
    assert _read(client_hello("one.example", grease=True)) == Hello(Kind.TLS, "one.example")


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", b"\x00", b"\xff\x00\x00", b"\x80\x2e\x05"]
)
def test_what_no_tls_client_begins_with_is_something_else(data: bytes) -> None:
    assert _read(data) == Hello(Kind.OTHER)


def test_a_name_that_is_not_ascii_is_broken_and_nobody_hears_of_it() -> None:
    data = client_hello("one.example")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _read(data.replace(b"one.example", b"on\xff.example")) == Hello(Kind.BROKEN)
        assert _read(data.replace(b"one.example", b"on\x00.example")) == Hello(Kind.BROKEN)
    assert _read(data) == Hello(Kind.TLS, "one.example")


def test_a_hello_without_end_is_given_up() -> None:
    record = b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes(0x3FFC)
    more = b"\x16\x03\x01\x40\x00" + bytes(0x4000)
    reader = HelloReader()
    fed = 0
    hello = reader.feed(record)
    while hello is None:
        hello = reader.feed(more)
        fed += len(more)
        assert fed <= 2 * LIMIT
    assert hello.kind is Kind.BROKEN


def test_an_end_before_the_hello_is_complete_is_no_hello() -> None:
    reader = HelloReader()
    assert reader.feed(client_hello("one.example")[:100]) is None
    assert reader.feed(b"") == Hello(Kind.BROKEN)


@given(st.binary(min_size=1, max_size=600), st.integers(0, 500), st.integers(0, 500))
@example(b"\x15\x03\x01\x00\x02\x01\x00", 0, 0)
def test_no_bytes_make_it_fail(junk: bytes, at: int, cut: int) -> None:
    data = client_hello("one.example")
    for hostile in (junk, b"\x16\x03\x01" + junk, data[:at] + junk + data[at + cut :]):
        hello = _read(hostile)
        assert hello is None or hello.kind in set(Kind)
