"""What is kept of images from registries: by digest and by tag, across restarts, and no more than the operator allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8e.substrate.local.images.pulled import PulledImage, PulledImages

HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def images(tmp_path: Path, clock: Clock) -> PulledImages:
    return PulledImages(tmp_path, now=clock)


def add(images: PulledImages, directory: Path, letter: str, size: int = 100) -> PulledImage:
    image = PulledImage(digest=f"sha256:{letter * 64}", bytes=size, env={"A": letter})
    root = directory / "new-root"
    root.mkdir()
    (root / "file").write_text(letter)
    images.add(image, root)
    images.find(image.digest)
    return image


def test_an_image_is_found_again_by_the_next_server(tmp_path: Path, images: PulledImages) -> None:
    image = add(images, tmp_path, "a")
    images.tag(image.digest, "r.example.com/a:1")
    later = PulledImages(tmp_path)
    found = later.find(image.digest)
    assert found is not None
    assert (later.path(found) / "file").read_text() == "a"
    assert found.env == {"A": "a"}
    tagged = later.tagged("r.example.com/a:1")
    assert tagged is not None
    assert tagged[0].digest == image.digest


def test_a_tag_moves_from_image_to_image(tmp_path: Path, images: PulledImages, clock: Clock) -> None:
    first, second = add(images, tmp_path, "a"), add(images, tmp_path, "b")
    images.tag(first.digest, "r.example.com/a:1")
    clock.now += 1
    images.tag(second.digest, "r.example.com/a:1")
    tagged = images.tagged("r.example.com/a:1")
    assert tagged is not None
    assert (tagged[0].digest, tagged[1]) == (second.digest, clock.now)
    assert images.tagged("r.example.com/a:2") is None


def test_the_longest_unused_goes_first_and_what_is_used_stays(
    tmp_path: Path, images: PulledImages, clock: Clock
) -> None:
    old = add(images, tmp_path, "a")
    clock.now += HOUR
    used = add(images, tmp_path, "b")
    clock.now += HOUR
    newer = add(images, tmp_path, "c")
    (tmp_path / f"venv-{old.directory}.12345678").mkdir()
    clock.now += HOUR
    fresh = add(images, tmp_path, "d")
    assert images.evict(400, {used.directory}) == 0
    assert images.find(old.digest) is not None, "the control: there was room for all"
    clock.now += HOUR
    images.find(fresh.digest)
    images.find(old.digest)
    assert images.evict(250, {used.directory}) == 50, "one is used, and two were asked for just now"
    assert images.find(newer.digest) is None
    clock.now += HOUR
    assert images.evict(100, {used.directory}) == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == [used.directory, f"{used.directory}.json"]


def test_a_record_without_its_directory_is_forgotten(tmp_path: Path, images: PulledImages) -> None:
    image = add(images, tmp_path, "a")
    images.path(image).rename(tmp_path / "away")
    assert PulledImages(tmp_path).digests == ()
    assert not (tmp_path / f"{image.directory}.json").exists()
