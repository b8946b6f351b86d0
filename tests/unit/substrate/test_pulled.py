"""What is kept of images from registries: by digest and by name, across restarts, and no more than the operator allows."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from k8e.substrate.local.images.pulled import PulledImage, PulledImages
from tests.support.clock import Clock

HOUR = 3600.0
REPOSITORY = "r.example.com/a"
NAME = "r.example.com/a:1"
QUESTION = "r.example.com/a:1 r.example.com/library/a:1"
PLENTY = 1 << 40


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def images(tmp_path: Path, clock: Clock) -> PulledImages:
    return PulledImages(tmp_path, now=clock)


def add(
    images: PulledImages, directory: Path, letter: str, size: int = 100, limit: int = PLENTY, *used: str
) -> PulledImage | None:
    image = PulledImage(digest=f"sha256:{letter * 64}", bytes=size, env={"A": letter})
    root = directory / f"new-root-{letter}"
    root.mkdir()
    (root / "file").write_text(letter)
    return image if images.admit(image, root, limit, used) else None


def added(images: PulledImages, directory: Path, letter: str, size: int = 100) -> PulledImage:
    image = add(images, directory, letter, size)
    assert image is not None
    return image


def test_an_image_is_found_again_by_the_next_server(tmp_path: Path, images: PulledImages) -> None:
    image = added(images, tmp_path, "a")
    images.found(image.digest, NAME, REPOSITORY, QUESTION)
    later = PulledImages(tmp_path)
    found = later.get(image.digest)
    assert found is not None
    assert (later.path(found) / "file").read_text() == "a"
    assert (found.env, found.repositories) == ({"A": "a"}, (REPOSITORY,))
    tagged = later.tagged(QUESTION)
    assert tagged is not None
    assert (tagged[0].digest, tagged[1].name) == (image.digest, NAME)


def test_a_name_moves_from_image_to_image_and_other_names_stay(
    tmp_path: Path, images: PulledImages, clock: Clock
) -> None:
    first, second = added(images, tmp_path, "a"), added(images, tmp_path, "b")
    images.found(first.digest, NAME, REPOSITORY, QUESTION)
    images.found(first.digest, NAME, REPOSITORY, "another question")
    clock.now += 1
    images.found(second.digest, NAME, REPOSITORY, QUESTION)
    tagged, other = images.tagged(QUESTION), images.tagged("another question")
    assert tagged is not None
    assert other is not None
    assert (tagged[0].digest, tagged[1].asked_at) == (second.digest, clock.now)
    assert other[0].digest == first.digest
    assert images.tagged("nobody asked") is None


def test_the_longest_unused_goes_first_and_what_is_used_stays(
    tmp_path: Path, images: PulledImages, clock: Clock
) -> None:
    made = []
    for letter in "abcd":
        made.append(added(images, tmp_path, letter))
        clock.now += HOUR
    old, used, leased, fresh = made
    (tmp_path / f"venv-{old.directory}.12345678").mkdir()
    with images.lease(leased.digest):
        assert images.room(450, {used.directory}) == 250
        assert add(images, tmp_path, "e", 100, 500, used.directory) is not None
        assert images.get(old.digest) is not None, "the control: there was room for all"
        assert add(images, tmp_path, "f", 100, 500, used.directory) is not None
        assert images.get(old.digest) is None
        assert not (tmp_path / old.directory).exists()
        assert not list(tmp_path.glob("venv-*"))
        assert images.get(fresh.digest) is not None
        # Nothing goes for one that cannot come in any case.
        assert add(images, tmp_path, "g", 400, 500, used.directory) is None
        assert len(images.digests) == 5
        assert add(images, tmp_path, "h", 300, 500, used.directory) is not None
        assert {image.digest[-1] for digest in images.digests if (image := images.get(digest))} == {"b", "c", "h"}
    assert add(images, tmp_path, "i", 100, 500, used.directory) is not None
    assert images.get(leased.digest) is None


def test_an_image_that_is_there_already_is_not_replaced(tmp_path: Path, images: PulledImages) -> None:
    image = added(images, tmp_path, "a")
    (images.path(image) / "stood on").touch()
    again = tmp_path / "again"
    again.mkdir()
    assert images.admit(image, again, 1, ()), "also where there would be no room for it now"
    assert (images.path(image) / "stood on").exists()


def test_what_belongs_to_an_image_counts(tmp_path: Path, images: PulledImages) -> None:
    image = added(images, tmp_path, "a")
    images.grow(image.directory, 50)
    grown = PulledImages(tmp_path).get(image.digest)
    assert grown is not None
    assert grown.bytes == 150


def test_removing_takes_its_time_and_nobody_waits_for_it(
    tmp_path: Path, images: PulledImages, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = added(images, tmp_path, "a")
    clock.now += HOUR
    removing, seen = threading.Event(), threading.Event()
    remove = shutil.rmtree

    def slowly(path: Path, *, ignore_errors: bool) -> None:
        removing.set()
        assert seen.wait(60)
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    thread = threading.Thread(target=add, args=(images, tmp_path, "b", 100, 150))
    thread.start()
    assert removing.wait(60)
    assert images.get(old.digest) is None
    assert images.tagged(QUESTION) is None, "which takes the lock"
    seen.set()
    thread.join()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"digest": 1}'])
def test_an_image_whose_file_was_lost_can_be_pulled_again(tmp_path: Path, images: PulledImages, text: str) -> None:
    image = added(images, tmp_path, "a")
    (tmp_path / f"{image.directory}.json").write_text(text)
    later = PulledImages(tmp_path)
    assert later.digests == ()
    added(later, tmp_path, "a")
    assert PulledImages(tmp_path).get(image.digest) is not None


def test_a_record_without_its_directory_is_forgotten(tmp_path: Path, images: PulledImages) -> None:
    image = added(images, tmp_path, "a")
    images.path(image).rename(tmp_path / "away")
    assert PulledImages(tmp_path).digests == ()
    assert not (tmp_path / f"{image.directory}.json").exists()
