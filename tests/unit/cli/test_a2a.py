"""`k8e a2a` takes only an address that is good for a card, and its help teaches."""

from __future__ import annotations

import pytest

from k8e.cli.a2a import public_host
from k8e.cli.grammar import full_parser
from k8e.client.errors import InvalidRequest


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://agents.example", "agents.example"),
        ("http://Agents.Example:8080/k8e", "agents.example"),
        ("https://[::1]:8822", "::1"),
    ],
)
def test_a_public_address_is_believed_as_a_host(url: str, host: str) -> None:
    assert public_host(url) == host


@pytest.mark.parametrize(
    "url",
    [
        "agents.example",
        "ftp://agents.example",
        "https://",
        "https://u:p@agents.example",
        "https://a/?b",
        "https://[::1",
        "",
    ],
)
def test_anything_else_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidRequest, match="public-url"):
        public_host(url)


def test_its_help_says_what_a_message_is_and_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["a2a", "--help"]
    with pytest.raises(SystemExit):
        full_parser(words).parse_args(words)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("agent-card.json", "contextId", "--require-key", "127.0.0.1:8822"))


def test_its_address_has_a_default_of_its_own() -> None:
    def given(*words: str) -> str:
        line = ["a2a", *words]
        return str(full_parser(line).parse_args(line).http_addr)

    assert given() == "127.0.0.1:8822"
    assert given("--addr", ":1") == given("--http-addr", ":1") == ":1"
