"""A secret is found in every spelling in which servers echo it, and in mixtures of them that nobody has listed."""

from __future__ import annotations

import base64
import html
import json
import re
import string
import time
import urllib.parse
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.egress.spellings import Decoded, SecretPattern, View

VALUE = """sk-live/a+b&c=d<e>"f'g\\h%41 0123456789"""
PATTERN = SecretPattern(VALUE.encode())
Encoder = Callable[[str], str]


def views(text: bytes) -> list[View]:
    return Decoded(text).views()


def echoed(spelling: str | bytes, *, pattern: SecretPattern = PATTERN, before: bytes = b'{"you sent": "') -> bytes:
    """What is taken for the secret."""
    raw = spelling.encode() if isinstance(spelling, str) else spelling
    text = before + raw + b'"}'
    spans = [span for view in views(text) for span in pattern.spans(view)]
    return max((text[start:end] for start, end in spans), key=len, default=b"")


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


@given(st.lists(st.sampled_from(ENCODERS), min_size=3, max_size=3))
def test_three_layers_are_undone_where_the_value_itself_introduces_no_escape(encoders: list[Encoder]) -> None:
    value = spelling = "ghp/with+slashes=in-it0123"
    for encode in encoders:
        spelling = encode(spelling)
    assert spelling.encode() in echoed(spelling, pattern=SecretPattern(value.encode()))


@pytest.mark.parametrize(
    "spelling",
    [
        "%2526%2523x2b%253B",  # an entity, percent-coded twice
        r"\x26\x23x2b\x3b",  # the same for JavaScript
        "&#x26;&#x23;x2b&#x3b;",  # an entity of an entity
        r"\u0026plus\u003b",
        "%25%32%62",  # every character of a percent code
        "&#x000002b;",
        "&#00000043;",
        r"\u{000002b}",
        r"\53",
    ],
)
def test_unusual_spellings_of_one_character_are_found(spelling: str) -> None:
    assert echoed(f"s3cr3t{spelling}value", pattern=SecretPattern(b"s3cr3t+value")) == f"s3cr3t{spelling}value".encode()


@pytest.mark.parametrize("before", ["%", "100%2", "&", "&#", "C:\\", "\\\\"])
@pytest.mark.parametrize("encode", [str, json_php, uri_component, html.escape], ids=lambda each: each.__name__)
def test_what_stands_before_it_does_not_swallow_its_beginning(encode: Encoder, before: str) -> None:
    value = "41/new&secret+0123"
    assert encode(value) in echoed(encode(before + value), pattern=SecretPattern(value.encode())).decode()


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
def test_any_mixture_is_found(data: st.DataObject) -> None:
    printable = st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\\%&")
    value = data.draw(st.text(printable, min_size=8, max_size=12))
    spelling = "".join(data.draw(st.sampled_from(SPELLINGS_OF_A_CHARACTER))(char) for char in value)
    assert spelling.encode() in echoed(spelling, pattern=SecretPattern(value.encode()))


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


HOSTILE = st.lists(
    st.binary(max_size=3)
    | st.sampled_from(
        [b"\\", b"%", b"&", b"u", b"#", b"U7fffffff", b"#999999999;", b"&no;", b"x", b"41", b"\n", b"amp;"]
    ),
    max_size=40,
).map(b"".join)


@given(HOSTILE)
def test_no_bytes_upset_the_search_and_every_view_knows_where_it_comes_from(text: bytes) -> None:
    for view in views(text):
        for index in range(len(view.data)):
            start, end = view.origin(index), view.origin(index + 1, is_end=True)
            assert 0 <= start < end <= view.origin(index + 1) <= len(text)
            assert end > start + 1 or text[start:end] == view.data[index : index + 1]
        assert not list(PATTERN.spans(view))


@pytest.mark.parametrize("length", [100, 128, 129, 192, 256, 257, 1000, 4096])
def test_values_of_every_length_are_found_in_every_form_and_their_beginnings_are_not(length: int) -> None:
    random = Random(length)
    value = "".join(random.choices(string.ascii_letters + string.digits + "+/ -", k=length - 2)).join("ab")
    pattern, raw = SecretPattern(value.encode()), value.encode()
    for spelling in (
        raw,
        raw.replace(b" ", b"+"),
        json_php(value).encode(),
        raw.hex().upper().encode(),
        *(base64.b64encode(beside + raw) for beside in (b"", b"x", b"xy")),
        base64.urlsafe_b64encode(raw),
    ):
        found = echoed(spelling, pattern=pattern)
        assert len(found) >= len(spelling) - 4
        assert found in spelling
        assert not echoed(spelling[:-8], pattern=pattern)


@pytest.mark.parametrize("beside", [b"", b"u", b"us", b"use"])
@pytest.mark.parametrize("after", [b"", b"a", b"ab"])
def test_the_characters_of_base64_that_a_value_shares_are_masked_too(beside: bytes, after: bytes) -> None:
    value = b"Secret0kx"
    bits = "".join(f"{byte:08b}" for byte in beside + value + after)
    first, last = len(beside) * 8 // 6, ((len(beside) + len(value)) * 8 - 1) // 6
    text = base64.b64encode(beside + value + after)
    assert len(bits) <= len(text) * 6
    assert echoed(text, pattern=SecretPattern(value), before=b"[").startswith(text[first : last + 1])


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
        VALUE[:8] + "\n\n" + VALUE[9:],
        VALUE.encode().hex()[:-2],
    ],
)
def test_what_only_looks_like_it_is_left_alone(other: str) -> None:
    assert not echoed(other)


def test_the_time_of_a_search_does_not_tell_how_much_of_a_secret_was_guessed() -> None:
    """A program inside may have its own guesses sent back by the host, as often as it likes."""
    value = b"ghp_A7kQz2Lm9pQ0x7Rk2nB4vC6dE8fG1hJ3kL5m"
    pattern = SecretPattern(value)

    def took(guess: bytes) -> float:
        text = (b"\\" * 50 + guess + b".") * (65536 // (len(guess) + 51))

        def once() -> float:
            began = time.thread_time()
            for view in views(text):
                assert not list(pattern.spans(view))
            return time.thread_time() - began

        return min(once() for _ in range(5))

    for right, wrong in ((value[:4], b"zzzz"), (value[:-1], b"z" * 39), (value.hex()[:8].encode(), b"00000000")):
        assert took(right) < 4 * took(wrong), (
            "a search that goes on where a guess is right takes a thousand times as long"
        )


def test_what_is_dense_in_escapes_of_all_kinds_does_not_keep_the_loop() -> None:
    piece = (b"%25" + rb"\u0025" + b"&amp;" + rb"\\" + b"%5C" + b"\n" + b"&#37;") * 300
    began = time.thread_time()
    assert len(views(piece)) < 40
    assert time.thread_time() - began < 1, "it takes milliseconds"
