"""Pulling, by the program that does it: once for all who wait, within bounds, and leaving nothing when it fails."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8e.errors import DiskFull, Exhausted, InvalidSpec, K8eError, SandboxFailed
from k8e.model import ImageProgress, OwnerId
from k8e.substrate.local.images.pull_job import Candidate, Job
from k8e.substrate.local.images.pulled import PulledImages
from k8e.substrate.local.images.pulls import Pulls, PullSettings
from k8e.substrate.local.images.registries import Source
from tests.support.registry import Handler, Registry, layer, member, serving
from tests.support.skips import needs_root

pytestmark = [pytest.mark.anyio, needs_root("files of an image belong to its own users")]

OWNER = OwnerId("uid:1")
CONTENT = b"0123456789" * 10_000


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as registry:
        yield registry


class Place:
    """A directory of images and whoever pulls into it."""

    def __init__(self, directory: Path, registry: Registry) -> None:
        self.directory = directory
        self.images = PulledImages(directory)
        self.used: set[str] = set()
        self.keep_free = 0
        self.heard: list[ImageProgress] = []
        self._registry = registry
        self.pulls = self.pulling()

    def pulling(self, **settings: Any) -> Pulls:
        environ = {**os.environ, "HOME": str(self.directory / "home"), "XDG_RUNTIME_DIR": "/nonexistent"}
        given = {"registries": (self._registry.address,), "environ": environ, **settings}
        self.pulls = Pulls(
            PullSettings(**given),
            self.images,
            self.directory,
            keep_free=lambda: self.keep_free,
            used=lambda: self.used,
        )
        return self.pulls

    async def pull(self, name: str, owner: OwnerId = OWNER) -> str:
        return await self.pulls.resolve(name, owner, self.heard.append)

    def root(self, name: str) -> Path:
        image = self.images.get(name.partition("@")[2])
        assert image is not None
        return self.images.path(image)

    def leftovers(self) -> list[str]:
        return [path.name for path in self.directory.iterdir() if path.name.startswith(".")]


@pytest.fixture
def place(tmp_path: Path, registry: Registry) -> Iterator[Place]:
    place = Place(tmp_path, registry)
    yield place
    assert place.leftovers() == []


def away(handler: Handler) -> bool:
    handler.answer(500)
    return True


async def test_an_image_is_pulled_once_and_then_it_is_here(place: Place, registry: Registry) -> None:
    image = registry.put("team/tool:1", layer(member("file", CONTENT)), layer(member("second", b"2")), env={"A": "1"})
    name = await place.pull("team/tool:1")
    assert name == f"{registry.address}/team/tool:1@{image.digest}"
    assert (place.root(name) / "file").read_bytes() == CONTENT
    assert (place.root(name) / "second").read_bytes() == b"2"
    found = place.images.get(image.digest)
    assert found is not None
    assert found.env == {"A": "1"}
    phases = list(dict.fromkeys(each.phase for each in place.heard))
    assert phases == ["waiting", "resolving", "downloading", "unpacking"], phases
    last = [each for each in place.heard if each.phase == "downloading"][-1]
    assert last.done == last.total > 0
    asked = len(registry.asked)
    assert [await place.pull(each) for each in ("team/tool:1", name, f"team/tool@{image.digest}")] == [
        name, name, f"{registry.address}/team/tool@{image.digest}",
    ]  # fmt: skip
    assert len(registry.asked) == asked, "nobody was asked again"


async def test_all_who_ask_meanwhile_get_the_same_pull(place: Place, registry: Registry) -> None:
    image = registry.put("tool:1", layer(member("file", CONTENT)))
    names = await asyncio.gather(*(place.pull("tool:1") for _ in range(5)))
    assert len(set(names)) == 1
    assert registry.pulled(image.blobs[1]) == 1


async def test_a_tag_is_believed_for_its_time_and_then_asked_again(place: Place, registry: Registry) -> None:
    first = registry.put("tool:1", layer(member("file", b"1")))
    await place.pull("tool:1")
    second = registry.put("tool:1", layer(member("file", b"2")))
    assert (await place.pull("tool:1")).endswith(first.digest)
    place.pulling(tag_age_s=0.0)
    assert (await place.pull("tool:1")).endswith(second.digest)
    pulled = registry.pulled(second.blobs[1])
    assert (await place.pull("tool:1")).endswith(second.digest)
    assert registry.pulled(second.blobs[1]) == pulled, "asked, and what it means is here"


async def test_an_image_that_is_here_is_used_while_its_registry_is_away(place: Place, registry: Registry) -> None:
    image = registry.put("tool:1", layer(member("file", b"1")))
    await place.pull("tool:1")
    place.pulling(tag_age_s=0.0)

    registry.fault = away
    assert (await place.pull("tool:1")).endswith(image.digest)
    asked = len(registry.asked)
    assert (await place.pull("tool:1")).endswith(image.digest)
    assert len(registry.asked) == asked, "not every session waits for a registry that is away"
    with pytest.raises(SandboxFailed, match="pull other:1"):
        await place.pull("other:1")


async def test_a_login_of_this_host_is_used(place: Place, registry: Registry) -> None:
    registry.put("private:1", layer(member("file", b"1")))
    registry.login, registry.has_tokens = ("user", "secret"), True
    with pytest.raises(InvalidSpec, match="docker login"):
        await place.pull("private:1")
    login = place.directory / "home" / ".docker" / "config.json"
    login.parent.mkdir(parents=True)
    login.write_text(json.dumps({"auths": {registry.address: {"auth": "dXNlcjpzZWNyZXQ="}}}))
    assert await place.pull("private:1")


async def test_an_image_that_is_too_large_is_refused_before_it_is_pulled(place: Place, registry: Registry) -> None:
    image = registry.put("large:1", layer(member("file", os.urandom(50_000))))
    small = registry.put("small:1", layer(member("file", b"1")))
    place.pulling(max_image=20_000)
    assert (await place.pull("small:1")).endswith(small.digest)
    with pytest.raises(InvalidSpec, match="--max-image"):
        await place.pull("large:1")
    assert registry.pulled(image.blobs[1]) == 0


async def test_an_image_that_grows_when_unpacked_is_refused(place: Place, registry: Registry) -> None:
    registry.put("bomb:1", layer(member("zeros", bytes(10 << 20))))
    place.pulling(max_image=1 << 20)
    with pytest.raises(InvalidSpec, match="unpacked it is larger"):
        await place.pull("bomb:1")


async def test_a_full_disk_is_named(place: Place, registry: Registry) -> None:
    registry.put("tool:1", layer(member("file", b"1")))
    place.keep_free = 1 << 60
    with pytest.raises(DiskFull, match="no room for"):
        await place.pull("tool:1")


def endless_digest(manifest: dict[str, Any]) -> None:
    manifest["layers"][0]["digest"] = "x" * 600_000


def no_layers(manifest: dict[str, Any]) -> None:
    del manifest["layers"]


def odd_digest(manifest: dict[str, Any]) -> None:
    manifest["layers"][0]["digest"] = "sha256:../../../../etc/passwd"


def negative(manifest: dict[str, Any]) -> None:
    manifest["layers"][0]["size"] = -1


def many_layers(manifest: dict[str, Any]) -> None:
    manifest["layers"] = [{"digest": f"sha256:{number:064x}", "size": 1} for number in range(600)]


@pytest.mark.parametrize("change", [no_layers, odd_digest, endless_digest, negative, many_layers])
async def test_a_manifest_that_lies_is_refused(place: Place, registry: Registry, change: Any) -> None:
    registry.put("tool:1", layer(member("file", b"1")), change=change)
    with pytest.raises(InvalidSpec):
        await place.pull("tool:1")


async def test_a_layer_that_lies_about_its_digest_is_refused(place: Place, registry: Registry) -> None:
    image = registry.put("tool:1", layer(member("file", b"1")))
    size = len(registry.blobs[image.blobs[1]])
    registry.blobs[image.blobs[1]] = gzip.compress(layer(member("evil", b"1")))[:size].ljust(size, b"\0")
    with pytest.raises(SandboxFailed, match="does not match its digest"):
        await place.pull("tool:1")


async def test_a_registry_that_says_nothing_costs_only_its_time(place: Place, registry: Registry) -> None:
    def wait(handler: Handler) -> bool:
        handler.rfile.read(1)  # until the other end is gone
        return True

    registry.fault = wait
    place.pulling(timeout_s=1.0)
    with pytest.raises(SandboxFailed, match="--pull-timeout"):
        await place.pull("tool:1")


async def test_one_owner_waits_for_its_own_pulls(place: Place, registry: Registry) -> None:
    registry.put("tool:1", layer(member("file", b"1")))
    registry.put("other:1", layer(member("file", b"2")))
    place.pulling(per_owner=1)
    first = [asyncio.ensure_future(place.pull("tool:1")) for _ in range(5)]
    while not place.heard:
        await asyncio.sleep(0.01)
    with pytest.raises(Exhausted) as caught:
        await place.pull("other:1")
    assert caught.value.retry_after_s
    assert await place.pull("other:1", OwnerId("uid:2"))
    assert len({await each for each in first}) == 1, "and however many wait for one image, it is one pull"
    assert await place.pull("other:1"), "and what is here is no pull"


async def test_an_owner_alone_does_not_hold_up_the_others(place: Place, registry: Registry) -> None:
    registry.put("tool:1", layer(member("file", b"1")))
    held = threading.Event()

    def hold(handler: Handler) -> bool:
        if "/slow-" in handler.path:
            held.wait(60)
        return False

    registry.fault = hold
    place.pulling(at_once=2)
    slow = [asyncio.ensure_future(place.pull(f"slow-{number}:1")) for number in range(4)]
    try:
        assert await place.pull("tool:1", OwnerId("uid:2"))
    finally:
        held.set()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_what_a_tag_means_is_looked_up_beside_the_pulls(place: Place, registry: Registry) -> None:
    registry.put("tool:1", layer(member("file", b"1")))
    name = await place.pull("tool:1")
    held = threading.Event()

    def hold(handler: Handler) -> bool:
        if "/slow-" in handler.path:
            held.wait(60)
        return False

    registry.fault = hold
    place.pulling(at_once=1, tag_age_s=0.0)
    slow = asyncio.ensure_future(place.pull("slow-1:1"))
    try:
        assert await place.pull("tool:1") == name
    finally:
        held.set()
        await asyncio.gather(slow, return_exceptions=True)


async def test_nobody_else_decides_what_a_short_name_means(tmp_path: Path, registry: Registry) -> None:
    first = registry.put("tool:1", layer(member("file", b"of the first registry")))
    with serving() as second:
        other = second.put("tool:1", layer(member("file", b"of the second")))
        other_only = second.put("only:1", layer(member("file", b"only there")))
        place = Place(tmp_path, registry)
        place.pulling(registries=(registry.address, second.address))
        assert (await place.pull(f"{second.address}/tool:1")).endswith(other.digest)
        assert (await place.pull("tool:1")).endswith(first.digest)
        assert (await place.pull("only:1")).endswith(other_only.digest), "the control: what the first has not"
        second.put("new:1", layer(member("file", b"new")))
        registry.fault = away
        with pytest.raises(SandboxFailed):
            await place.pull("new:1")


async def test_a_digest_is_given_only_under_a_name_that_has_it(place: Place, registry: Registry) -> None:
    image = registry.put("team/tool:1", layer(member("file", b"1")))
    await place.pull("team/tool:1")
    assert await place.pull(f"team/tool@{image.digest}")
    with pytest.raises(InvalidSpec):
        await place.pull(f"no/such/thing@{image.digest}")


async def test_images_give_way_to_newer_ones_unless_sandboxes_stand_on_them(place: Place, registry: Registry) -> None:
    registry.put("a:1", layer(member("file", CONTENT)))
    second = registry.put("b:1", layer(member("other", os.urandom(100_000))))
    place.pulling(kept=150_000)
    first = await place.pull("a:1")
    place.used = {path.name for path in place.directory.glob("pulled-*") if path.is_dir()}
    with pytest.raises(Exhausted, match="--kept-images"):
        await place.pull("b:1")
    assert registry.pulled(second.blobs[1]) == 0, "found out before anything is pulled"
    place.used = set()
    name = await place.pull("b:1")
    assert (place.root(name) / "other").exists()
    assert place.images.get(first.partition("@")[2]) is None


async def test_a_pull_whose_program_is_killed_is_an_error_and_can_be_tried_again(
    place: Place, registry: Registry
) -> None:
    registry.put("tool:1", layer(member("file", b"1")))
    killed = False

    def kill(handler: Handler) -> bool:
        nonlocal killed
        if not killed and "blobs" in handler.path:
            killed = True
            for entry in Path("/proc").iterdir():
                if entry.name.isdecimal() and _is_pull(entry, str(place.directory)):
                    os.kill(int(entry.name), signal.SIGKILL)
        return False

    registry.fault = kill
    with pytest.raises(K8eError, match="ended without a word"):
        await place.pull("tool:1")
    assert killed
    assert await place.pull("tool:1")


def _is_pull(entry: Path, home: str) -> bool:
    try:
        return b"images.pull" in (entry / "cmdline").read_bytes() and home.encode() in (entry / "environ").read_bytes()
    except OSError:
        return False


def test_the_program_ends_with_its_server(registry: Registry, tmp_path: Path) -> None:
    def wait(handler: Handler) -> bool:
        handler.rfile.read(1)
        return True

    registry.fault = wait
    source = Source(host=registry.address, repository="tool", is_insecure=True)
    job = Job(
        candidates=(Candidate(name="tool:1", version="1", sources=(source,)),),
        scratch=str(tmp_path),
    )
    with subprocess.Popen(
        [sys.executable, "-m", "k8e.substrate.local.images.pull"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(job.text().encode() + b"\n")
        process.stdin.close()
        assert process.wait(60) == 1


async def test_nothing_is_imported_from_where_the_server_was_started(
    place: Place, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.put("tool:1", layer(member("file", b"1")))
    (tmp_path / "httpx.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    place.pulling(environ={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert await place.pull("tool:1")
