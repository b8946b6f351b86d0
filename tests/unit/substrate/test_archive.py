"""OCI images from disk: the right manifest, proven blobs, clear refusals."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

import pytest

from k8e.errors import InvalidSpec
from k8e.substrate.local.images import archive
from tests.support.skips import needs_root

pytestmark = needs_root("files of an image belong to its own users")

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


class Layout:
    """Writes an OCI layout blob by blob."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs/sha256").mkdir(parents=True)
        (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, content: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (self.root / "blobs/sha256" / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def layer(self, **files: bytes) -> dict[str, Any]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return self.blob(gzip.compress(buffer.getvalue()), "application/vnd.oci.image.layer.v1.tar+gzip")

    def manifest(self, *layers: dict[str, Any], architecture: str = ARCHITECTURE) -> dict[str, Any]:
        content = json.dumps({"schemaVersion": 2, "layers": layers}).encode()
        descriptor = self.blob(content, "application/vnd.oci.image.manifest.v1+json")
        return {**descriptor, "platform": {"architecture": architecture, "os": "linux"}}

    def index(self, *manifests: dict[str, Any]) -> None:
        (self.root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.mkdir()
    return path


def test_layers_are_applied_in_order(layout: Layout, target: Path) -> None:
    layout.index(layout.manifest(layout.layer(a=b"1", b=b"1"), layout.layer(b=b"2")))
    archive.unpack(layout.root, target)
    assert ((target / "a").read_bytes(), (target / "b").read_bytes()) == (b"1", b"2")


def test_a_tar_of_a_layout_is_the_same_image(layout: Layout, target: Path, tmp_path: Path) -> None:
    layout.index(layout.manifest(layout.layer(a=b"1")))
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        tar.add(layout.root, arcname=".")
    archive.unpack(tmp_path / "image.tar", target)
    assert (target / "a").read_bytes() == b"1"
    assert not list(tmp_path.glob(".k8e-*"))


def test_the_manifest_of_this_machine_is_chosen(layout: Layout, target: Path) -> None:
    other = layout.manifest(layout.layer(a=b"other"), architecture="s390x")
    layout.index(other, layout.manifest(layout.layer(a=b"mine")))
    archive.unpack(layout.root, target)
    assert (target / "a").read_bytes() == b"mine"


def test_a_nested_index_is_followed(layout: Layout, target: Path) -> None:
    inner = json.dumps({"schemaVersion": 2, "manifests": [layout.manifest(layout.layer(a=b"1"))]}).encode()
    layout.index(layout.blob(inner, "application/vnd.oci.image.index.v1+json"))
    archive.unpack(layout.root, target)
    assert (target / "a").read_bytes() == b"1"


def test_a_blob_that_is_not_what_its_digest_says_is_refused(layout: Layout, target: Path) -> None:
    descriptor = layout.layer(a=b"1")
    layout.index(layout.manifest(descriptor))
    path = layout.root / "blobs/sha256" / descriptor["digest"].partition(":")[2]
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(InvalidSpec, match="does not match its digest"):
        archive.unpack(layout.root, target)


@pytest.mark.parametrize("digest", ["sha256:../../../etc/passwd", "md5:00", "", "sha256:zz"])
def test_a_digest_is_never_a_path(layout: Layout, target: Path, digest: str) -> None:
    layout.index({"digest": digest})
    with pytest.raises(InvalidSpec):
        archive.unpack(layout.root, target)


def test_an_image_for_another_machine_is_refused(layout: Layout, target: Path) -> None:
    layout.index(layout.manifest(layout.layer(a=b"1"), architecture="s390x"))
    with pytest.raises(InvalidSpec, match="not made for linux"):
        archive.unpack(layout.root, target)


def test_something_else_than_an_image_is_refused(target: Path, tmp_path: Path) -> None:
    (tmp_path / "junk.tar").write_bytes(b"junk")
    with pytest.raises(InvalidSpec, match="not an OCI image archive"):
        archive.unpack(tmp_path / "junk.tar", target)


def test_a_header_that_claims_to_be_huge_is_not_read(layout: Layout, target: Path) -> None:
    """`tarfile` reads the header of a long name in one piece, as long as it says it is."""
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 3 << 20
    content = long.tobuf(tarfile.GNU_FORMAT) + b"n" * (3 << 20) + b"\0" * 1024
    layer = layout.blob(gzip.compress(content), "application/vnd.oci.image.layer.v1.tar+gzip")
    layout.index(layout.manifest(layer))
    with pytest.raises(InvalidSpec, match="a header of"):
        archive.unpack(layout.root, target)


def test_what_an_image_sets_is_returned_as_far_as_it_is_well_formed(layout: Layout, target: Path) -> None:
    config = {"config": {"Env": ["PATH=/bin", "A=1=2", "no-name=x", "nothing", 7, "B=\u0000", "C=\ud800", "EMPTY="]}}
    descriptor = layout.blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
    content = json.dumps({"config": descriptor, "layers": [layout.layer(a=b"1")]}).encode()
    layout.index(layout.blob(content, "application/vnd.oci.image.manifest.v1+json"))
    assert archive.unpack(layout.root, target) == {"PATH": "/bin", "A": "1=2", "EMPTY": ""}


@pytest.mark.parametrize("config", [{"config": {"Env": [f"A={'x' * 40_000}"]}}, {"config": []}, {"config": {"Env": 1}}])
def test_an_image_cannot_set_more_than_a_command_can_take(layout: Layout, target: Path, config: dict[str, Any]) -> None:
    descriptor = layout.blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
    layout.index(layout.blob(json.dumps({"config": descriptor, "layers": []}).encode(), "manifest"))
    if "Env" in config["config"] and isinstance(config["config"]["Env"], list):
        with pytest.raises(InvalidSpec, match="sets variables of more than"):
            archive.unpack(layout.root, target)
    else:
        assert archive.unpack(layout.root, target) == {}


def test_zstd_layers_are_refused_with_what_to_do(layout: Layout, target: Path) -> None:
    layer = layout.blob(b"\x28\xb5\x2f\xfd" + b"x" * 100, "application/vnd.oci.image.layer.v1.tar")
    layout.index(layout.manifest(layer))
    with pytest.raises(InvalidSpec, match="use gzip"):
        archive.unpack(layout.root, target)


def test_an_image_for_another_machine_without_an_index_is_refused(layout: Layout, target: Path) -> None:
    def image(architecture: str) -> None:
        config = layout.blob(json.dumps({"architecture": architecture, "os": "linux"}).encode(), "config")
        content = json.dumps({"config": config, "layers": [layout.layer(a=b"1")]}).encode()
        layout.index(layout.blob(content, "manifest"))

    image(ARCHITECTURE)
    archive.unpack(layout.root, target)
    image("s390x")
    with pytest.raises(InvalidSpec, match="not made for linux"):
        archive.unpack(layout.root, target)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[1]", b"\xff", b"7"])
def test_a_document_that_is_none_is_refused(layout: Layout, target: Path, content: bytes) -> None:
    layout.index(layout.blob(content, "application/vnd.oci.image.manifest.v1+json"))
    with pytest.raises(InvalidSpec):
        archive.unpack(layout.root, target)
