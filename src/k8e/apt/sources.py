"""Package sources as text: read in both of apt's formats, written in one, never with credentials.

`*.list` has one source in a line, `*.sources` one in a paragraph of fields (deb822). Options that are not known here are
dropped, and so are sources that a sandbox cannot reach: files and disks of the host, and methods other than HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

__all__ = ["SIGNED_BY", "Source", "from_fields", "from_lines", "host", "public", "reachable", "rendered"]

SIGNED_BY: Final = "Signed-By"
_MAX_SOURCES: Final = 256
_MAX_URIS: Final = 64
_MAX_VALUE: Final = 64 * 1024

_OPTIONS: Final = {
    "arch": "Architectures",
    "lang": "Languages",
    "target": "Targets",
    "pdiffs": "PDiffs",
    "by-hash": "By-Hash",
    "allow-insecure": "Allow-Insecure",
    "allow-weak": "Allow-Weak",
    "allow-downgrade-to-insecure": "Allow-Downgrade-To-Insecure",
    "trusted": "Trusted",
    "signed-by": SIGNED_BY,
    "check-valid-until": "Check-Valid-Until",
    "valid-until-min": "Valid-Until-Min",
    "valid-until-max": "Valid-Until-Max",
    "check-date": "Check-Date",
    "date-max-future": "Date-Max-Future",
    "inrelease-path": "InRelease-Path",
}
"""Names in a line's brackets, and what the same is called as a field."""
_FIELDS: Final = {name.lower(): name for name in _OPTIONS.values()}
_TYPES: Final = frozenset({"deb", "deb-src"})
_DISABLED: Final = frozenset({"no", "false", "without", "off", "disable"})
_WEB: Final = ("http", "https")
_LIST_ON_THE_WEB: Final = ("mirror", "mirror+http", "mirror+https")
"""A list of mirrors that apt fetches from a host; `mirror` means by HTTP."""
_MIRROR_FILE: Final = "mirror+file"

_LINE: Final = re.compile(r"(?P<type>deb(?:-src)?)\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<rest>\S.*)")
_OPTION: Final = re.compile(r"(?P<name>[A-Za-z-]+)(?P<sign>[+-]?)=(?P<value>\S+)")
_WORD: Final = re.compile(r"[!-~]{1,1024}")
_KEY: Final = "-----BEGIN PGP PUBLIC KEY BLOCK-----"

ReadMirrors = Callable[[str], str]
"""The text of a file on the host that lists mirrors; empty where it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where packages come from; one paragraph of a `*.sources` file."""

    types: tuple[str, ...]
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


def from_lines(text: str) -> list[Source]:
    """The enabled sources of a `*.list` file; lines that apt would not understand are left out."""
    found = (_from_line(line.partition("#")[0].strip()) for line in text.splitlines())
    return [source for source in found if source is not None][:_MAX_SOURCES]


def from_fields(text: str) -> list[Source]:
    """The enabled sources of a `*.sources` file; paragraphs that apt would not understand are left out."""
    found = (_from_paragraph(fields) for fields in _paragraphs(text))
    return [source for source in found if source is not None][:_MAX_SOURCES]


def reachable(source: Source, read_mirrors: ReadMirrors) -> tuple[Source | None, list[str]]:
    """The source as a sandbox may have it, None if nothing is left of it; and the addresses that were left out."""
    uris: list[str] = []
    dropped: list[str] = []
    for uri in source.uris:
        scheme, _, rest = uri.partition(":")
        # A list that is a file of the host: its mirrors stand in the sandbox's own file instead.
        named = _listed(read_mirrors(rest)) if scheme.lower() == _MIRROR_FILE else [uri]
        kept = [address for address in map(public, named) if address]
        uris += kept
        dropped += [] if kept else [uri]
    if not uris:
        return None, dropped
    return replace(source, uris=tuple(dict.fromkeys(uris))[:_MAX_URIS]), dropped


def public(uri: str) -> str:
    """An address on the web without user, password and query; empty if it is no such address."""
    try:
        parts = urlsplit(uri)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        return ""
    if not host or parts.scheme.lower() not in (*_WEB, *_LIST_ON_THE_WEB):
        return ""
    return urlunsplit(SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def host(uri: str) -> str:
    """`host`, or `host:port` where the public address has a port."""
    return urlsplit(uri).netloc.lower()


def rendered(sources: Iterable[Source]) -> str:
    """The text of one `*.sources` file."""
    return "\n".join("".join(f"{name}: {value}\n" for name, value in _fields(source)) for source in sources)


def _fields(source: Source) -> Iterator[tuple[str, str]]:
    yield "Types", " ".join(source.types)
    yield "URIs", " ".join(source.uris)
    yield "Suites", " ".join(source.suites)
    if source.components:
        yield "Components", " ".join(source.components)
    yield from source.options.items()


def _from_line(line: str) -> Source | None:
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    uri, *words = match["rest"].split()
    if not words or not _are_words([uri, *words]):
        return None
    options = dict(_line_options(match["options"] or ""))
    return Source(types=(match["type"],), uris=(uri,), suites=(words[0],), components=tuple(words[1:]), options=options)


def _line_options(text: str) -> Iterator[tuple[str, str]]:
    for option in _OPTION.finditer(text):
        name = _OPTIONS.get(option["name"].lower())
        if name is not None:
            suffix = {"": "", "+": "-Add", "-": "-Remove"}[option["sign"]]
            yield name + suffix, option["value"].replace(",", " ")


def _paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Fields by their names in lower case."""
    fields: dict[str, str] = {}
    last = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, ""
        elif line[0] in " \t":
            if last:
                fields[last] += f"\n{line.rstrip()}"
        else:
            name, _, value = line.partition(":")
            last = name.strip().lower()
            fields[last] = value.strip()


def _from_paragraph(fields: Mapping[str, str]) -> Source | None:
    if fields.get("enabled", "yes").strip().lower() in _DISABLED:
        return None
    types, uris, suites, components = (
        tuple(fields.get(name, "").split()) for name in ("types", "uris", "suites", "components")
    )
    if not (types and uris and suites) or not set(types) <= _TYPES or not _are_words([*uris, *suites, *components]):
        return None
    return Source(types=types, uris=uris, suites=suites, components=components, options=dict(_field_options(fields)))


def _field_options(fields: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for written, value in fields.items():
        base, suffix = written, ""
        for ending in ("-Add", "-Remove"):
            if written.endswith(ending.lower()):
                base, suffix = written.removesuffix(ending.lower()), ending
        name = _FIELDS.get(base)
        if name is None or len(value) > _MAX_VALUE:
            continue
        if name == SIGNED_BY and _KEY in value and _are_lines(value):
            yield name, _as_continued(value)
        elif value.split() and _are_words(value.split()):
            yield name + suffix, " ".join(value.split())


def _as_continued(value: str) -> str:
    """A key in its field: every line of it begins with a blank."""
    return "".join(f"\n {line}" for line in map(str.strip, value.splitlines()) if line)


def _listed(text: str) -> list[str]:
    """The mirrors of a list: the first word of each line, which may have priorities after it."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return [words[0] for words in lines if words and _are_words(words[:1])][:_MAX_URIS]


def _are_lines(text: str) -> bool:
    return all(line.isprintable() and line.isascii() for line in text.splitlines())


def _are_words(words: Iterable[str]) -> bool:
    """Whether each can stand in a file of ours: printable, no blank, not without end."""
    return all(_WORD.fullmatch(word) for word in words)
