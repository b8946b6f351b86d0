"""One form for every spelling of a name, and a reason for everything that is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.policy.names import BadName, canonical


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("example.com", "example.com"),
        ("EXAMPLE.Com", "example.com"),
        ("example.com.", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("faß.example", "xn--fa-hia.example"),
        ("ｅｘａｍｐｌｅ.com", "example.com"),
        ("example。com", "example.com"),
        ("привет.example", "xn--b1agh1afp.example"),
        ("日本voice.example", "xn--voice-1e1k07e.example"),
        ("r3---sn-a.example", "r3---sn-a.example"),
        ("under_score.example", "under_score.example"),
        ("intranet", "intranet"),
        ("1.2.3.4.example", "1.2.3.4.example"),
        ("a" * 63 + ".example", "a" * 63 + ".example"),
    ],
)
def test_every_spelling_has_one_form(text: str, name: str) -> None:
    assert canonical(text) == name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (".", "empty"),
        ("example..com", "empty label"),
        (".example.com", "empty label"),
        ("example.com..", "empty label"),
        ("-a.example", "no label"),
        ("a-.example", "no label"),
        ("exa mple.com", "no label"),
        ("example.com\n", "no label"),
        ("example.com\x00.example", "no label"),
        ("user@example.com", "no label"),
        ("example.com/path", "no label"),
        ("example.com:443", "no label"),
        ("*.example.com", "no label"),
        ("a" * 64 + ".example", "63"),
        (".".join(["a" * 49] * 6), "253"),
        ("127.0.0.1", "ends in a number"),
        ("127.1", "ends in a number"),
        ("2130706433", "ends in a number"),
        ("0x7f.0x1", "ends in a number"),
        ("example.0x", "ends in a number"),
        ("example.１", "ends in a number"),
        ("::1", "no label"),
        ("p\u0430ypal.example", "several alphabets"),  # a Cyrillic а
        ("xn--pypal-4ve.example", "several alphabets"),  # the same, as it travels
        ("g\u03bfogle.example", "several alphabets"),  # a Greek ο
        ("exa\u200bmple.com", "invisible"),
        ("exa\u00admple.com", "invisible"),
        ("example\u202e.com", "invisible"),
        ("\ud800.example", "invisible"),
        ("\u2603.example", "not allowed"),
        ("xn--a.example", "no valid A-label"),
        ("xn--.example", "no label"),
        ("xn--example-.com", "no label"),
        ("\u0338.example", "no label"),
    ],
)
def test_what_is_no_name_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(BadName) as refused:
        canonical(text)
    assert reason in refused.value.reason


def test_a_homograph_of_one_alphabet_shows_itself() -> None:
    """It is a real name, but not the one that it looks like."""
    assert canonical("\u0430\u0440\u0440\u04cf\u0435.example") == "xn--80ak6aa92e.example"


@given(st.text(max_size=80) | st.from_regex(r"[A-Za-z0-9._-]{1,80}", fullmatch=True))
def test_the_form_of_the_form_is_itself(text: str) -> None:
    try:
        name = canonical(text)
    except BadName:
        return
    assert canonical(name) == name
    assert canonical(name.upper() + ".") == name
    assert name.isascii()
    assert name == name.lower()
    assert 0 < len(name) <= 253
