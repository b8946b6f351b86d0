"""Package sources as text, in both of apt's formats."""

from __future__ import annotations

import pytest

from k8e.apt import sources
from k8e.apt.sources import Source

_KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----"


def _no_mirrors(_: str) -> str:
    return ""


def test_a_line_has_options_suites_and_components() -> None:
    text = "deb [ arch=amd64,arm64 signed-by=/etc/apt/keyrings/a.gpg lang+=de ] https://a.example/debian stable main extra # why\n"
    assert sources.from_lines(text) == [
        Source(
            types=("deb",),
            uris=("https://a.example/debian",),
            suites=("stable",),
            components=("main", "extra"),
            options={
                "Architectures": "amd64 arm64",
                "Signed-By": "/etc/apt/keyrings/a.gpg",
                "Languages-Add": "de",
            },
        )
    ]


@pytest.mark.parametrize(
    "line",
    [
        "# deb http://a.example/ stable main",
        "  #deb http://a.example/ stable main",
        "deb",
        "deb http://a.example/",
        "rpm http://a.example/ stable main",
        "deb http://a.example/\x07 stable main",
        "deb http://ä.example/ stable main",
        f"deb http://a.example/{'x' * 2000} stable main",
    ],
)
def test_comments_and_lines_that_apt_would_not_take_are_no_sources(line: str) -> None:
    control = "deb http://control.example/ stable main"
    assert [source.uris for source in sources.from_lines(f"{line}\n{control}\n")] == [("http://control.example/",)]


def test_a_paragraph_has_several_of_everything_and_may_be_switched_off() -> None:
    text = (
        "# a comment\nTypes: deb deb-src\nURIs: http://a.example/debian\n  http://b.example/debian\n"
        "# between\nSuites: one two\nComponents: main\nsigned-by: /usr/share/keyrings/k.gpg\nX-Own: secret\n"
        "\n\nEnabled: no\nTypes: deb\nURIs: http://off.example/\nSuites: one\n"
        "\nTypes: deb\nURIs: http://flat.example/\nSuites: ./\nTrusted: yes\n"
    )
    first, second = sources.from_fields(text)
    assert first == Source(
        types=("deb", "deb-src"),
        uris=("http://a.example/debian", "http://b.example/debian"),
        suites=("one", "two"),
        components=("main",),
        options={"Signed-By": "/usr/share/keyrings/k.gpg"},
    )
    assert (second.suites, second.options) == (("./",), {"Trusted": "yes"})


def test_a_key_may_stand_in_the_field_itself() -> None:
    text = f"Types: deb\nURIs: http://a.example/\nSuites: one\nSigned-By:\n {_KEY}\n .\n mQENBF\n -----END-----\n"
    (source,) = sources.from_fields(text)
    assert sources.from_fields(sources.rendered([source])) == [source]
    assert f"Signed-By: \n {_KEY}\n .\n mQENBF\n" in sources.rendered([source])


def test_what_is_written_is_read_again_as_it_was() -> None:
    found = sources.from_lines("deb [trusted=yes] http://a.example:8080/x ./\ndeb-src https://b.example/ stable main\n")
    assert sources.from_fields(sources.rendered(found)) == found


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("http://user:password@a.example/debian", "http://a.example/debian"),
        ("https://user@a.example:8443/", "https://a.example:8443/"),
        ("https://a@b:c@a.example/", "https://a.example/"),
        ("https://a.example/debian?token=secret#more", "https://a.example/debian"),
        ("mirror+https://user:pw@a.example/list", "mirror+https://a.example/list"),
        ("file:/srv/packages", ""),
        ("copy:/srv/packages", ""),
        ("cdrom:[Disk]/", ""),
        ("ftp://a.example/", ""),
        ("tor+http://a.example/", ""),
        ("http://a.example:port/", ""),
        ("http:///nothing", ""),
    ],
)
def test_of_an_address_only_its_public_part_is_kept(written: str, shown: str) -> None:
    assert sources.public(written) == shown


def test_a_list_of_mirrors_in_a_file_gives_its_mirrors() -> None:
    (source,) = sources.from_lines("deb mirror+file:/etc/apt/mirrors.txt stable main\n")
    listed = "http://me:secret@one.example/debian\tpriority:1\n# no\nfile:/srv\nhttps://two.example/debian\n"
    usable, dropped = sources.reachable(source, {"/etc/apt/mirrors.txt": listed}.__getitem__)
    assert usable is not None
    assert usable.uris == ("http://one.example/debian", "https://two.example/debian")
    assert dropped == []


def test_a_source_that_only_the_host_has_is_left_out_and_named() -> None:
    (source,) = sources.from_lines("deb [trusted=yes] file:/srv/packages ./\n")
    assert sources.reachable(source, _no_mirrors) == (None, ["file:/srv/packages"])


def test_sources_without_end_are_cut() -> None:
    line = "deb http://a.example/ stable main\n"
    assert len(sources.from_lines(line * 10_000)) == 256
    assert len(sources.from_fields("Types: deb\nURIs: http://a.example/\nSuites: a\n\n" * 10_000)) == 256
    (long,) = sources.from_fields(
        "Types: deb\nSuites: a\nURIs:" + "".join(f" http://a.example/{n}" for n in range(9999))
    )
    usable, _ = sources.reachable(long, _no_mirrors)
    assert usable is not None
    assert len(usable.uris) == 64
