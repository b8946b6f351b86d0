"""Registries as they are, on loopback: logins, mirrors that are away, transfers that break, and those that lie."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k8e.substrate.local.images import credentials
from k8e.substrate.local.images.credentials import Credentials
from k8e.substrate.local.images.registries import Source
from k8e.substrate.local.images.registry import DOCUMENT_BYTES, Missing, Registry, RegistryFailed
from tests.support.registry import Handler, TestImage, layer, member, serving
from tests.support.registry import Registry as Served

Open = Callable[..., Registry]


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as registry:
        yield registry


@pytest.fixture
def image(served: Served) -> TestImage:
    return served.put("team/tool:1", layer(member("file", b"content" * 1000)))


@pytest.fixture
def opened(served: Served) -> Iterator[Open]:
    made: list[Registry] = []

    def open_(repository: str = "team/tool", known: Credentials | None = None, *, is_insecure: bool = True) -> Registry:
        source = Source(host=served.address, repository=repository, is_insecure=is_insecure)
        made.append(Registry(source, known, sleep=lambda _seconds: None))
        return made[-1]

    yield open_
    for each in made:
        each.close()


def test_a_manifest_is_found_by_tag_and_by_digest(opened: Open, image: TestImage) -> None:
    registry = opened()
    by_tag = registry.manifest("1")
    assert by_tag.digest == image.digest
    assert registry.manifest(image.digest) == by_tag
    with pytest.raises(Missing, match="without a login"):
        registry.manifest("2")


@pytest.mark.parametrize("has_tokens", [False, True], ids=["basic", "bearer"])
def test_a_login_is_used_where_it_is_asked_for(
    served: Served, opened: Open, image: TestImage, has_tokens: bool
) -> None:
    served.login, served.has_tokens = ("user", "secret"), has_tokens
    assert opened(known=Credentials("user", "secret")).manifest("1").digest == image.digest
    for wrong in (None, Credentials("user", "guess")):
        with pytest.raises(Missing):
            opened(known=wrong).manifest("1")


def test_an_identity_token_is_exchanged(served: Served, opened: Open, image: TestImage) -> None:
    served.login, served.has_tokens = ("unknown", "unknown"), True
    assert opened(known=Credentials("", "", "mine")).manifest("1").digest == image.digest
    assert any("refresh_token=mine" in asked for asked in served.asked)


def test_a_transfer_that_breaks_goes_on_where_it_stopped(
    served: Served, opened: Open, image: TestImage, tmp_path: Path
) -> None:
    digest = image.blobs[1]
    content = served.blobs[digest]
    ranges: list[str | None] = []

    def break_once(handler: Handler) -> bool:
        if not handler.path.endswith(digest):
            return False
        ranges.append(handler.headers.get("Range"))
        if len(ranges) > 1:
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[:20])
        handler.close_connection = True
        return True

    served.fault = break_once
    heard: list[int] = []
    opened().fetch(digest, len(content), tmp_path / "blob", heard.append)
    assert (tmp_path / "blob").read_bytes() == content
    assert ranges == [None, "bytes=20-"]
    assert sum(heard) == len(content)


def test_a_busy_registry_is_asked_again(served: Served, opened: Open, image: TestImage) -> None:
    answers = iter([503, 429])

    def busy(handler: Handler) -> bool:
        status = next(answers, 0) if "manifests" in handler.path else 0
        if status:
            handler.answer(status, Retry_After="1")
        return bool(status)

    served.fault = busy
    assert opened().manifest("1").digest == image.digest


def test_a_blob_that_is_not_what_its_digest_says_is_refused(
    served: Served, opened: Open, image: TestImage, tmp_path: Path
) -> None:
    digest = image.blobs[1]
    size = len(served.blobs[digest])
    opened().fetch(digest, size, tmp_path / "control", lambda _count: None)
    served.blobs[digest] = b"x" * size
    with pytest.raises(RegistryFailed, match="does not match its digest"):
        opened().fetch(digest, size, tmp_path / "blob", lambda _count: None)
    assert not (tmp_path / "blob").exists()


def test_a_manifest_that_is_not_what_its_digest_says_is_refused(served: Served, opened: Open, image: TestImage) -> None:
    served.documents["team/tool", image.digest] = b"{}"
    with pytest.raises(RegistryFailed, match="another manifest"):
        opened().manifest(image.digest)


def test_a_blob_that_does_not_end_is_cut_off_at_its_size(
    served: Served, opened: Open, image: TestImage, tmp_path: Path
) -> None:
    digest = image.blobs[1]
    written = 0

    def flood(handler: Handler) -> bool:
        nonlocal written
        if not handler.path.endswith(digest):
            return False
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        try:
            while written < 1 << 30:
                written += handler.wfile.write(b"x" * 65536)
        except OSError:
            pass
        return True

    served.fault = flood
    with pytest.raises(RegistryFailed, match="sent more"):
        opened().fetch(digest, len(served.blobs[digest]), tmp_path / "blob", lambda _count: None)
    assert (tmp_path / "blob").stat().st_size <= len(served.blobs[digest])
    assert written < 1 << 30


def test_a_document_that_does_not_end_is_refused(served: Served, opened: Open) -> None:
    served.documents["team/tool", "1"] = b" " * (DOCUMENT_BYTES + 1)
    with pytest.raises(RegistryFailed, match="more than"):
        opened().manifest("1")


def test_nothing_goes_over_plain_http_unless_the_operator_says_so(
    served: Served, opened: Open, image: TestImage
) -> None:
    assert opened(is_insecure=True).manifest("1").digest == image.digest
    asked = len(served.asked)
    with pytest.raises(RegistryFailed):
        opened(known=Credentials("user", "secret"), is_insecure=False).manifest("1")
    assert len(served.asked) == asked


def test_a_redirect_is_followed_without_the_credentials(
    served: Served, opened: Open, image: TestImage, tmp_path: Path
) -> None:
    """Registries keep blobs elsewhere; what is elsewhere has no right to the operator's password."""
    seen: list[str | None] = []

    with serving() as elsewhere:
        digest = image.blobs[1]

        def elsewhere_instead(handler: Handler) -> bool:
            if handler.path.endswith(digest) and handler.headers.get("Authorization"):
                handler.answer(307, Location=f"http://{elsewhere.address}/v2/team/tool/blobs/{digest}")
                return True
            return False

        def note(handler: Handler) -> bool:
            seen.append(handler.headers.get("Authorization"))
            return False

        served.login, served.fault = ("user", "secret"), elsewhere_instead
        elsewhere.blobs, elsewhere.fault = served.blobs, note
        content = served.blobs[digest]
        registry = opened(known=Credentials("user", "secret"))
        registry.fetch(digest, len(content), tmp_path / "blob", lambda _count: None)
    assert (tmp_path / "blob").read_bytes() == content
    assert seen == [None]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://user:password@127.0.0.1:1/", "ftp://127.0.0.1/x"])
def test_a_redirect_to_what_is_no_registry_is_not_followed(
    served: Served, opened: Open, image: TestImage, target: str
) -> None:
    def away(handler: Handler) -> bool:
        if "manifests" in handler.path:
            handler.answer(307, Location=target)
            return True
        return False

    served.fault = away
    with pytest.raises(RegistryFailed):
        opened().manifest("1")


def test_a_circle_of_redirects_ends(served: Served, opened: Open) -> None:
    def round_again(handler: Handler) -> bool:
        if "manifests" in handler.path:
            handler.answer(307, Location=handler.path)
            return True
        return False

    served.fault = round_again
    with pytest.raises(RegistryFailed, match="in circles"):
        opened().manifest("1")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def find(home: Path, host: str, repository: str = "team/tool", **environ: str) -> Credentials | None:
    return credentials.find(host, repository, {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "none"), **environ})


def write_login(path: Path, **config: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config), encoding="utf-8")


def entry(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_logins_of_docker_and_podman_are_found_and_the_most_exact_one_wins(home: Path) -> None:
    assert find(home, "r.example.com") is None
    auths = {
        "https://r.example.com/v2/": entry("docker", "a:b"),
        "r.example.com/team": entry("team", "c"),
        "https://index.hub.example.com/v1/": entry("hub", "d"),
        "token.example.com": {"identitytoken": "t"},
    }
    write_login(home / ".docker/config.json", auths=auths)
    assert find(home, "r.example.com", "other/tool") == Credentials("docker", "a:b")
    assert find(home, "r.example.com") == Credentials("team", "c")
    assert find(home, "hub.example.com") == Credentials("hub", "d")
    assert find(home, "token.example.com") == Credentials("", "", "t")
    assert find(home, "elsewhere.example.com") is None
    write_login(home / ".config/containers/auth.json", auths={"r.example.com": entry("podman", "e")})
    assert find(home, "r.example.com") == Credentials("podman", "e")
    write_login(home / "own.json", auths={"r.example.com": entry("own", "f")})
    assert find(home, "r.example.com", REGISTRY_AUTH_FILE=str(home / "own.json")) == Credentials("own", "f")


def test_a_credential_helper_is_asked(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "bin" / "docker-credential-test"
    helper.parent.mkdir()
    helper.write_text('#!/bin/sh\nread name\necho "{\\"Username\\": \\"of $name\\", \\"Secret\\": \\"s\\"}"\n')
    helper.chmod(0o755)
    write_login(home / ".docker/config.json", credHelpers={"r.example.com": "test", "no.example.com": "../absent"})
    monkeypatch.setenv("PATH", f"{helper.parent}:/usr/bin:/bin")
    assert find(home, "r.example.com") == Credentials("of r.example.com", "s")
    with pytest.raises(Exception, match="not installed"):
        find(home, "no.example.com")


def test_all_of_a_blob_is_not_asked_for_again(served: Served, opened: Open, image: TestImage, tmp_path: Path) -> None:
    """The connection may break behind the last byte, and of nothing more there is no part."""
    digest = image.blobs[1]
    content = served.blobs[digest]

    def break_behind(handler: Handler) -> bool:
        if not handler.path.endswith(digest):
            return False
        assert handler.headers.get("Range") is None
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content) + 1))
        handler.end_headers()
        handler.wfile.write(content)
        handler.close_connection = True
        return True

    served.fault = break_behind
    opened().fetch(digest, len(content), tmp_path / "blob", lambda _count: None)
    assert (tmp_path / "blob").read_bytes() == content


def test_of_several_ways_to_log_in_the_token_is_taken(served: Served, opened: Open, image: TestImage) -> None:
    served.login, served.has_tokens = ("user", "secret"), True

    def both(handler: Handler) -> bool:
        if handler.headers.get("Authorization") or not handler.path.startswith("/v2/"):
            return False
        realm = (
            f'Bearer realm="http://{served.address}/token?account=x",service="a,b",scope="s", Basic realm="Registry"'
        )
        handler.answer(401, WWW_Authenticate=realm)
        return True

    served.fault = both
    assert opened(known=Credentials("user", "secret")).manifest("1").digest == image.digest
    assert "/token?account=x&service=a%2Cb&scope=s" in served.asked


@pytest.mark.parametrize("status", [403, 404])
def test_what_does_not_answer_like_a_registry_is_named_and_nobody_else_is_asked(
    served: Served, opened: Open, status: int
) -> None:
    def refuse(handler: Handler) -> bool:
        handler.answer(status)
        return True

    served.fault = refuse
    with pytest.raises(RegistryFailed, match=f"does not answer like a registry: {status}"):
        opened().manifest("1")


def test_what_a_tag_means_is_asked_without_the_content(served: Served, opened: Open, image: TestImage) -> None:
    methods: list[str] = []

    def note(handler: Handler) -> bool:
        methods.append(handler.command)
        return False

    served.fault = note
    assert opened().digest("1") == image.digest
    assert methods == ["GET", "HEAD"], "the first is for /v2/"
