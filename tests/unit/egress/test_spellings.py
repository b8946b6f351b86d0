"""A secret is found in every spelling in which servers echo it, and in mixtures of them that nobody has listed."""

from __future__ import annotations

import base64
import html
import json
import re
import time
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.egress.spellings import SecretPattern, Text, Unsearchable

VALUE = """sk-live/a+b&c=d<e>"f'g\\h%41 0123456789"""
PATTERN = SecretPattern(VALUE.encode())
Encoder = Callable[[str], str]


def echoed(spelling: str | bytes, *, pattern: SecretPattern = PATTERN, before: bytes = b'{"you sent": "') -> bytes:
    """What is taken for the secret."""
    raw = spelling.encode() if isinstance(spelling, str) else spelling
    text = before + raw + b'"}'
    found = pattern.find(Text(text))
    return text[found[0] : found[1]] if found else b""


def json_plain(text: str) -> str:
    return json.dumps(text)[1:-1]


def json_php(text: str) -> str:
    return json_plain(text).replace("/", r"\/")


def json_dotnet(text: str) -> str:
    return re.sub(r"""\\"|[+&<>']""", lambda found: rf"\u{ord(found[0][-1]):04X}", json_plain(text))


def json_go(text: str) -> str:
    return re.sub("[&<>]", lambda found: rf"\u{ord(found[0]):04x}", json_plain(text))


def uri_component(text: str) -> str:
    return urllib.parse.quote(text, safe="!'()*-._~")


def uri_path(text: str) -> str:
    return urllib.parse.quote(text, safe="/:@!$&'()*+,;=~")


def lower_percent(text: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), urllib.parse.quote(text, safe=""))


def html_decimal(text: str) -> str:
    return re.sub(r"\W", lambda found: f"&#{ord(found[0])};", text)


def html_hex(text: str) -> str:
    return "".join(f"&#x{ord(char):X};" for char in text)


def html_names(text: str) -> str:
    names = {"/": "sol", "+": "plus", "=": "equals", "%": "percnt", "\\": "bsol", "&": "amp", '"': "quot"}
    return "".join(f"&{names[char]};" if char in names else char for char in text)


def c_escapes(text: str) -> str:
    return "".join(rf"\x{ord(char):02x}" for char in text)


def octal(text: str) -> str:
    return "".join(char if char.isalnum() else rf"\{ord(char):03o}" for char in text)


def shell(text: str) -> str:
    return re.sub(r"\W", lambda found: "\\" + found[0], text)


def js_braces(text: str) -> str:
    return "".join(char if char.isalnum() else rf"\u{{{ord(char):x}}}" for char in text)


ENCODERS: list[Encoder] = [
    str, json_plain, json_php, json_dotnet, json_go, uri_component, uri_path, lower_percent, urllib.parse.quote_plus,
    html.escape, html_decimal, html_hex, html_names, c_escapes, octal, shell, js_braces,
]  # fmt: skip


@pytest.mark.parametrize("encode", ENCODERS, ids=lambda each: each.__name__)
def test_every_way_to_write_it_is_found(encode: Encoder) -> None:
    spelling = encode(VALUE)
    assert echoed(spelling) == spelling.encode()


@pytest.mark.parametrize("outer", [json_plain, json_php, json_dotnet, uri_component, lower_percent, html.escape])
@pytest.mark.parametrize("inner", ENCODERS, ids=lambda each: each.__name__)
def test_one_way_within_another_is_found(inner: Encoder, outer: Encoder) -> None:
    spelling = outer(inner(VALUE))
    if len(spelling) > 12 * len(VALUE):
        pytest.skip("longer than what is looked for")
    assert echoed(spelling) == spelling.encode()


def test_json_within_json_within_json_is_found() -> None:
    assert echoed(
        json_php(json_php(json_php("token/with+slashes/in-it"))), pattern=SecretPattern(b"token/with+slashes/in-it")
    )


SPELLINGS_OF_A_CHARACTER: list[Encoder] = [
    str,
    lambda char: f"%{ord(char):02x}",
    lambda char: f"%25{ord(char):02X}",
    lambda char: rf"\u{ord(char):04x}",
    lambda char: rf"\\u{ord(char):04X}",
    lambda char: f"&#{ord(char)};",
    lambda char: f"&amp;#{ord(char)};",
    lambda char: rf"\u0026#x{ord(char):x};",
    lambda char: char if char.isalnum() else f"\\{char}",
    lambda char: f"%5Cx{ord(char):02x}",
]


@given(st.data())
def test_any_mixture_is_found_wherever_it_stands(data: st.DataObject) -> None:
    printable = st.characters(min_codepoint=33, max_codepoint=126)
    value = data.draw(st.text(printable, min_size=8, max_size=12))
    spelling = "".join(data.draw(st.sampled_from(SPELLINGS_OF_A_CHARACTER))(char) for char in value)
    before = data.draw(st.sampled_from([b"", b"%", b"\\", b"&", b"100%2", b"\\\\", b"&amp", b"x" * 50]))
    assert spelling.encode() in echoed(spelling, pattern=SecretPattern(value.encode()), before=before)


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize(
    "wrap", [bytes, lambda raw: json_php(raw.decode()).encode(), lambda raw: urllib.parse.quote(raw, safe="").encode()]
)
@pytest.mark.parametrize("beside", [b"", b"a", b"ab", b"user:"])
@pytest.mark.parametrize("tail", [b"", b"x", b"xy"])
def test_a_value_within_base64_is_found_at_every_offset(
    encode: Callable[[bytes], bytes], wrap: Callable[[bytes], bytes], beside: bytes, tail: bytes
) -> None:
    value = b"\x7f?>secret?~\x7f>>?value"  # many of the two characters in which the alphabets differ
    found = echoed(wrap(encode(beside + value + tail)), pattern=SecretPattern(value))
    assert len(found) >= len(value) * 4 // 3 - 2


@pytest.mark.parametrize("line", ["\n", "\r\n", r"\n", r"\r\n", "%0A", "&#10;"])
@pytest.mark.parametrize("shift", range(0, 60, 7))
def test_a_value_within_base64_is_found_across_lines(line: str, shift: int) -> None:
    lines = base64.encodebytes(b"-" * shift + VALUE.encode() + b"-" * 30).decode().split("\n")
    found = echoed(line.join(lines))
    assert len(found.replace(line.encode(), b"")) >= len(VALUE) * 4 // 3 - 2


@given(
    st.lists(
        st.binary(max_size=3) | st.sampled_from([b"\\", b"%", b"&", b"u", b"#", b"U7fffffff", b"#9999999;", b"&no;"])
    )
)
def test_no_bytes_upset_the_search(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    assert not PATTERN.find(Text(text))
    SecretPattern(b"\\&%\\&%\\&").find(Text(text))


@pytest.mark.parametrize("digits", [VALUE.encode().hex(), VALUE.encode().hex().upper()])
def test_a_value_in_hexadecimal_digits_is_found(digits: str) -> None:
    assert echoed(digits) == digits.encode()


@pytest.mark.parametrize(
    "other",
    [
        VALUE[:-1],
        VALUE[1:],
        VALUE.replace("/", "//"),
        VALUE.upper(),
        json_php(VALUE)[:-1],
        VALUE.replace("%41", "%%41"),
        VALUE[:8] + "\n" + VALUE[8:],
        VALUE.encode().hex()[:-2],
    ],
)
def test_what_only_looks_like_it_is_left_alone(other: str) -> None:
    assert not echoed(other)


def test_a_text_that_was_made_to_take_long_is_refused_soon() -> None:
    hostile = [
        (b"\\" * 4095 + b"x", b"\\" * 8192),
        (b"%25" * 1000 + b"x", b"%25" * 2700),
        (b"a" * 4000 + b"b", b"a" * 8192),
    ]
    for value, text in hostile:
        pattern, began = SecretPattern(value), time.thread_time()
        with pytest.raises(Unsearchable):
            pattern.find(Text(text))
        assert time.thread_time() - began < 2, "without a bound it takes minutes"
    echoes = json_php("sk/live/0123456789").encode() * 400
    at, count, text_of_echoes = 0, 0, Text(echoes)
    pattern = SecretPattern(b"sk/live/0123456789")
    while found := pattern.find(text_of_echoes, at):
        at, count = found[1], count + 1
    assert count == 400, "control: many true echoes are no reason to refuse"
