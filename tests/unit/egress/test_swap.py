"""What becomes of a brokered request and its response, as pure values."""

from __future__ import annotations

import base64

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.egress.http import Refused
from k8e.egress.scrub import Masked
from k8e.egress.spellings import SecretPattern
from k8e.egress.swap import Swap
from k8e.model import Grant

WORD, VALUE = "k8e_placeholder_api", "the-real-value-of-api"
KEYS_WORD = "k8e_placeholder_key"
OTHER, OTHERS_VALUE = "k8e_placeholder_other", "the-real-value-of-other"
GRANTS = (
    Grant(host="api.example", header="authorization", placeholder=WORD, value=VALUE),
    Grant(host="api.example", header="x-api-key", placeholder=KEYS_WORD, value="second-value"),
    Grant(host="other.example", header="authorization", placeholder=OTHER, value=OTHERS_VALUE),
)
SECRETS = tuple(Masked(SecretPattern(each.value.encode()), each.placeholder.encode()) for each in GRANTS)
SWAP = Swap("api.example", GRANTS, SECRETS)


def request(*headers: tuple[str, str], target: str = "/", method: str = "GET") -> h11.Request:
    return h11.Request(method=method, target=target, headers=[("Host", "api.example"), *headers])


def sent(*headers: tuple[str, str], target: str = "/") -> dict[str, str]:
    swapped = SWAP.request(request(*headers, target=target))
    return {name.decode().lower(): value.decode() for name, value in swapped.headers.raw_items()}


def test_the_placeholder_is_swapped_in_the_header_it_is_for() -> None:
    assert sent(("Authorization", f"Bearer {WORD}"))["authorization"] == f"Bearer {VALUE}"
    assert sent(("AUTHORIZATION", f"token {WORD}"))["authorization"] == f"token {VALUE}"
    assert sent(("X-Api-Key", KEYS_WORD))["x-api-key"] == "second-value"
    assert sent(("Accept", "a/b"))["accept"] == "a/b"


def test_the_placeholder_is_swapped_inside_basic_credentials() -> None:
    token = base64.b64encode(f"user:{WORD}".encode()).decode()
    made = sent(("Authorization", f"Basic {token}"))["authorization"]
    assert base64.b64decode(made.removeprefix("Basic ")) == f"user:{VALUE}".encode()
    assert sent(("Authorization", "Basic !!!"))["authorization"] == "Basic !!!"


@pytest.mark.parametrize(
    "bad",
    [
        request(("X-Other", WORD)),
        request(("Cookie", f"a={WORD}")),
        request(("Authorization", OTHER)),
        request(("Authorization", KEYS_WORD)),
        request(("X-Api-Key", WORD)),
        request(("Authorization", "Basic " + base64.b64encode(f"me:{OTHER}".encode()).decode())),
        request(("Proxy-Authorization", "basic " + base64.b64encode(f"me:{WORD}".encode()).decode())),
        request(target=f"/?token={WORD}"),
        request(target=f"/{OTHER}"),
    ],
    ids=[
        "header",
        "cookie",
        "another host's",
        "another header's",
        "wrong header",
        "in Basic",
        "for a proxy",
        "query",
        "path",
    ],
)
def test_a_placeholder_anywhere_else_is_refused(bad: h11.Request) -> None:
    with pytest.raises(Refused, match="placeholder"):
        SWAP.request(bad)


def test_a_placeholder_whose_secret_is_gone_is_held_back() -> None:
    swap = Swap("api.example", (Grant(host="api.example", header="authorization", placeholder=WORD, value=""),), ())
    token = base64.b64encode(f"user:{WORD}".encode()).decode()
    for value in (WORD, f"Bearer {WORD}", f"Basic {token}"):
        with pytest.raises(Refused, match="gone"):
            swap.request(request(("Authorization", value)))
    assert swap.request(request(("Authorization", "Bearer mine"))).headers
    assert swap.scrubber().whole(b"nothing to scrub") == b"nothing to scrub"


def test_another_host_in_a_request_is_refused() -> None:
    with pytest.raises(Refused):
        SWAP.request(h11.Request(method="GET", target="/", headers=[("Host", "other.example")]))


def test_only_what_can_be_scrubbed_is_asked_for() -> None:
    assert sent(("Accept-Encoding", "gzip, deflate, br;q=0.5, zstd"))["accept-encoding"] == "gzip, br;q=0.5"
    assert sent(("Accept-Encoding", "zstd, *"))["accept-encoding"] == "identity"
    assert sent(("Accept-Encoding", "gzip"), ("Range", "bytes=0-9"))["accept-encoding"] == "identity"
    assert "accept-encoding" not in sent()
    assert "sec-websocket-extensions" not in sent(("Sec-WebSocket-Extensions", "permessage-deflate"))


def test_a_response_is_scrubbed_in_headers_and_reason() -> None:
    response = h11.Response(
        status_code=200,
        reason=f"OK {VALUE}".encode(),
        headers=[("X-Echo", f"Bearer {VALUE}"), ("Alt-Svc", 'h3=":443"'), ("Content-Length", "3")],
    )
    answer = SWAP.response(response, has_body=True)
    shown = {name.decode(): value.decode() for name, value in answer.head.headers.raw_items()}
    assert shown == {"X-Echo": f"Bearer {WORD}**", "Content-Length": "3"}
    assert VALUE.encode() not in bytes(answer.head.reason)
    assert answer.decoder is None


def test_information_before_the_response_is_scrubbed_too() -> None:
    hint = h11.InformationalResponse(
        status_code=103, headers=[("Link", f"</{VALUE}>")], reason=f"Hints for {VALUE}".encode()
    )
    told = SWAP.information(hint)
    assert told.status_code == 103
    assert VALUE.encode() not in bytes(told.reason) + told.headers.raw_items()[0][1]
    assert bytes(told.reason).startswith(b"Hints for ")


def test_a_packed_body_loses_its_length_and_encoding_but_only_where_there_is_one() -> None:
    response = h11.Response(status_code=200, headers=[("Content-Encoding", "gzip"), ("Content-Length", "30")])
    assert SWAP.response(response, has_body=True).head.headers.raw_items() == []
    assert len(SWAP.response(response, has_body=False).head.headers.raw_items()) == 2


PIECES = st.lists(st.sampled_from([WORD, KEYS_WORD, OTHER, WORD[:-1], "Bearer ", "Basic ", "x", ", ", "="]), max_size=4)
HEADERS = st.lists(
    st.tuples(st.sampled_from(["Authorization", "X-Api-Key", "X-Other", "Cookie", "Proxy-Authorization"]), PIECES),
    max_size=4,
)


@given(HEADERS, PIECES)
def test_whatever_is_asked_values_are_only_where_they_belong(
    headers: list[tuple[str, list[str]]], path: list[str]
) -> None:
    target = "/" + "".join(path).replace(" ", "")
    asked = request(*((name, "".join(pieces).strip()) for name, pieces in headers), target=target)
    words = [WORD.encode(), KEYS_WORD.encode(), OTHER.encode()]
    try:
        swapped = SWAP.request(asked)
    except Refused:
        assert any(word in text for word in words for text in (asked.target, *(value for _, value in asked.headers)))
        return
    for name, value in swapped.headers:
        assert (VALUE.encode() in value) <= (name == b"authorization")
        assert (b"second-value" in value) <= (name == b"x-api-key")
        assert OTHERS_VALUE.encode() not in value
        assert not any(word in value for word in words)
    assert not any(word in swapped.target for word in words)
