"""Host names in one form, so that two spellings of a name are one name and nothing else passes for it.

The canonical form is lower case, in A-labels (`xn--…`), without a dot at the end. A name that some reader may take for
another one is refused: characters of two alphabets in one label, invisible characters, a name that ends in a number
(which many resolvers read as an address), an A-label that does not decode to what it came from.
"""

from __future__ import annotations

import re
import unicodedata

import idna

__all__ = ["BadName", "canonical"]

_LONGEST_NAME = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# Alphabets that are properly written together: Latin stands beside these in real names and cannot be taken for them.
_EAST_ASIAN = frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO"})


class BadName(ValueError):
    """The text is no host name; `reason` says why, for whoever wrote it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def canonical(text: str) -> str:
    """The one form of a host name.

    Raises:
        BadName: it is not a name that may stand for a host.
    """
    labels = _ascii_labels(text) if text.isascii() else _foreign_labels(text)
    name = ".".join(labels)
    if len(name) > _LONGEST_NAME:
        raise BadName(f"longer than {_LONGEST_NAME} characters")
    if _NUMBER.fullmatch(labels[-1]):
        raise BadName("it ends in a number, which may be read as an address")
    return name


def _split(text: str) -> list[str]:
    labels = text.removesuffix(".").split(".")
    if labels == [""]:
        raise BadName("empty")
    if "" in labels:
        raise BadName("an empty label between dots")
    return labels


def _ascii_labels(text: str) -> list[str]:
    return [_ascii_label(label) for label in _split(text.lower())]


def _ascii_label(label: str) -> str:
    if len(label) > 63:
        raise BadName("a label is longer than 63 characters")
    if not _LABEL.fullmatch(label):
        raise BadName(f"{label!r} is no label of a host name")
    if label.startswith("xn--"):
        _check_a_label(label)
    return label


def _check_a_label(label: str) -> None:
    try:
        decoded = idna.ulabel(label)
        again = idna.alabel(decoded).decode("ascii")
    except UnicodeError as error:  # idna's own errors are UnicodeErrors
        raise BadName(f"{label!r} is no valid A-label: {error}") from error
    if again != label:
        raise BadName(f"{label!r} is another spelling of {again!r}")
    _check_one_alphabet(decoded)


def _foreign_labels(text: str) -> list[str]:
    # Refused before the mapping, which would silently drop some of them.
    if any(unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Co"} for letter in text):
        raise BadName("it contains an invisible character")
    try:
        mapped = idna.uts46_remap(text, True, False)
    except UnicodeError as error:
        raise BadName(f"not a host name: {error}") from error
    return [_foreign_label(label) for label in _split(mapped)]


def _foreign_label(label: str) -> str:
    if label.isascii():
        return _ascii_label(label.lower())
    _check_one_alphabet(label)
    try:
        return idna.alabel(label).decode("ascii")
    except UnicodeError as error:
        raise BadName(f"{label!r} is no label of a host name: {error}") from error


def _check_one_alphabet(label: str) -> None:
    alphabets = {_alphabet(letter) for letter in label if letter.isalpha()}
    others = alphabets - {"LATIN"}
    if len(alphabets) > 1 and not others <= _EAST_ASIAN:
        raise BadName(f"{label!r} mixes letters of several alphabets ({', '.join(sorted(alphabets)).lower()})")


def _alphabet(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").partition(" ")[0]
