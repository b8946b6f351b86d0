"""Names of images, and where the operator says that they come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from k8e.errors import HostUnsupported, InvalidSpec
from k8e.substrate.local.images.reference import Reference, parse
from k8e.substrate.local.images.registries import Registries, Source, read

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("python", Reference(registry="", repository="python", tag="latest")),
        ("python:3.12-slim", Reference(registry="", repository="python", tag="3.12-slim")),
        ("team/tools", Reference(registry="", repository="team/tools", tag="latest")),
        ("r.example.com/a/b:1", Reference(registry="r.example.com", repository="a/b", tag="1")),
        ("localhost/a", Reference(registry="localhost", repository="a", tag="latest")),
        ("r:5000/a", Reference(registry="r:5000", repository="a", tag="latest")),
        ("[::1]:5000/a", Reference(registry="[::1]:5000", repository="a", tag="latest")),
        (f"python@{DIGEST}", Reference(registry="", repository="python", digest=DIGEST)),
        (f"r.example.com/a:1@{DIGEST}", Reference(registry="r.example.com", repository="a", tag="1", digest=DIGEST)),
    ],
)
def test_a_name_is_read_as_other_tools_read_it(text: str, meant: Reference) -> None:
    assert parse(text) == meant
    assert parse(str(meant)) == meant


@pytest.mark.parametrize(
    "text",
    [
        "", "Python", "a//b", "/a", "a/", "a:", "a:b c", "a@sha256:12", "a@md5:aa", "../a", "a/../b", "a?x=1", "a#b", "a b",
        "http://r.example.com/a", "user@r.example.com/a", "r.example.com:port/a", "-r.example.com/a",
        f"a@{DIGEST.upper()}", f"a@{DIGEST}@{DIGEST}", "a\n", "a\0", "a" * 600,
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused_with_the_form_that_is(text: str) -> None:
    with pytest.raises(InvalidSpec, match="write NAME"):
        parse(text)


Configure = Callable[..., Registries]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """The registries of a host with these files."""

    def configured(*chosen: str, insecure: tuple[str, ...] = (), **files: str) -> Registries:
        places = {
            "conf": "etc/containers/registries.conf",
            "part": "etc/containers/registries.conf.d/50-part.conf",
            "docker": "etc/docker/daemon.json",
        }
        for name, text in files.items():
            path = tmp_path / places[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return read(chosen, insecure, environ={}, host=tmp_path)

    return configured


def names(registries: Registries, text: str) -> list[str]:
    return [str(each) for each in registries.full_names(parse(text))]


def test_without_a_registry_the_error_shows_the_line_to_write(configure: Configure) -> None:
    with pytest.raises(InvalidSpec) as caught:
        configure().full_names(parse("python:3.12-slim"))
    assert "--image-registries registry.example.com" in str(caught.value)
    assert 'unqualified-search-registries = ["registry.example.com"]' in str(caught.value)


def test_a_short_name_is_asked_of_the_setting_and_where_that_keeps_its_own_names(configure: Configure) -> None:
    chosen = configure("r.example.com", "other.example.com/team")
    assert names(chosen, "python:3") == [
        "r.example.com/python:3",
        "r.example.com/library/python:3",
        "other.example.com/team/python:3",
        "other.example.com/team/library/python:3",
    ]
    assert names(chosen, "a/b") == ["r.example.com/a/b:latest", "other.example.com/team/a/b:latest"]


def test_the_setting_takes_the_place_of_the_hosts_registries(configure: Configure) -> None:
    conf = 'unqualified-search-registries = ["theirs.example.com"]\n[aliases]\n"python" = "theirs.example.com/python"\n'
    assert names(configure(conf=conf), "python") == ["theirs.example.com/python:latest"]
    assert names(configure("r.example.com", conf=conf), "a/b") == ["r.example.com/a/b:latest"]
    assert names(configure("r.example.com"), "r.example.com/a") == [
        "r.example.com/a:latest",
        "r.example.com/library/a:latest",
    ]
    with pytest.raises(InvalidSpec, match=r"theirs\.example\.com is none of this server's registries"):
        configure("r.example.com", conf=conf).full_names(parse("theirs.example.com/a"))


@pytest.mark.parametrize(
    "name", ["elsewhere.example.com/a", "127.0.0.1:80/a", "169.254.169.254/latest", "r.example.com.evil.org/a"]
)
def test_a_caller_cannot_make_the_server_ask_anybody_else(configure: Configure, name: str) -> None:
    registries = configure("r.example.com", "local.example.com/team")
    assert registries.full_names(parse("local.example.com/team/a"))
    for refused in (name, "local.example.com/teammates/a", "local.example.com/other"):
        with pytest.raises(InvalidSpec, match="none of this server's registries"):
            registries.full_names(parse(refused))


def test_mirrors_and_rules_of_registries_conf_hold(configure: Configure) -> None:
    conf = """
        unqualified-search-registries = ["hub.example.com"]
        [[registry]]
        prefix = "hub.example.com"
        location = "origin.example.com/hub"
        [[registry.mirror]]
        location = "mirror.example.com/cache"
        [[registry.mirror]]
        location = "old.example.com"
        insecure = true
        [[registry]]
        location = "bad.example.com"
        blocked = true
    """
    part = '[[registry]]\nprefix = "hub.example.com/team"\nlocation = "team.example.com"\n'
    registries = configure(conf=conf, part=part)
    assert registries.sources(parse("hub.example.com/a/b:1")) == (
        Source(host="mirror.example.com", repository="cache/a/b"),
        Source(host="old.example.com", repository="a/b", is_insecure=True),
        Source(host="origin.example.com", repository="hub/a/b"),
    )
    assert registries.sources(parse("hub.example.com/team/a")) == (Source(host="team.example.com", repository="a"),)
    with pytest.raises(InvalidSpec, match="none of this server's registries"):
        registries.full_names(parse("bad.example.com/a/b"))
    with pytest.raises(InvalidSpec, match="blocked"):
        configure("bad.example.com", conf=conf).full_names(parse("bad.example.com/a"))
    assert names(configure("bad.example.com", "r.example.com", conf=conf), "a/b") == ["r.example.com/a/b:latest"]


def test_dockers_mirrors_serve_short_names(configure: Configure) -> None:
    docker = json.dumps({"registry-mirrors": ["http://m.example.com:5000/"], "insecure-registries": ["i.example.com"]})
    registries = configure(docker=docker)
    assert names(registries, "a/b") == ["m.example.com:5000/a/b:latest"]
    assert registries.sources(parse("m.example.com:5000/a"))[0].is_insecure
    assert registries.sources(parse("i.example.com/a"))[0].is_insecure
    assert not registries.sources(parse("r.example.com/a"))[0].is_insecure


@pytest.mark.parametrize("host", ["127.0.0.1:5000", "localhost", "localhost:5000", "[::1]:5000", "set.example.com"])
def test_loopback_and_what_the_operator_says_may_be_plain(configure: Configure, host: str) -> None:
    assert configure(insecure=("set.example.com",)).sources(parse(f"{host}/a"))[0].is_insecure


@pytest.mark.parametrize("files", [{"conf": "= ="}, {"docker": "{"}, {"docker": "[]"}, {"part": "a = 'b"}])
def test_a_file_that_cannot_be_read_is_named(configure: Configure, files: dict[str, str]) -> None:
    with pytest.raises(HostUnsupported, match=r"etc/(containers|docker)/.* is not valid"):
        configure(**files)


def test_a_pattern_of_hosts_names_no_registry(configure: Configure) -> None:
    registries = configure(conf='[[registry]]\nprefix = "*.example.com"\nlocation = "x.example.com"\n')
    with pytest.raises(InvalidSpec):
        registries.full_names(parse("any.example.com/a"))


def test_the_advice_stays_short_and_names_the_place_that_counts(configure: Configure) -> None:
    aliases = "".join(f'"short{number}" = "hub{number}.example.com/long/name"\n' for number in range(300))
    conf = f'unqualified-search-registries = ["hub.example.com"]\n[aliases]\n{aliases}'
    with pytest.raises(InvalidSpec) as caught:
        configure(conf=conf).full_names(parse("new.example.com/a/b"))
    assert len(str(caught.value)) < 1000
    assert "--image-registries hub.example.com,new.example.com" in str(caught.value)
    assert 'unqualified-search-registries = ["hub.example.com", "new.example.com"]' in str(caught.value)
    with pytest.raises(InvalidSpec) as caught:
        configure("r.example.com", conf=conf).full_names(parse("new.example.com/a/b"))
    assert "registries.conf" not in str(caught.value)
