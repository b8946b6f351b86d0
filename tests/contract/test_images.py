"""Images other than the host's: directories and OCI images, with and without Python, and those of strangers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8e.errors import InvalidSpec
from k8e.model import Reason, Runtime
from tests.support.cells import CellFactory
from tests.support.image_roots import fill_python, fill_shell, packed

pytestmark = [pytest.mark.anyio, pytest.mark.not_bare]

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def _write_layout(target: Path, *layers: bytes) -> None:
    """An OCI layout of these uncompressed layers."""
    blobs = target / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    packed = [blob(gzip.compress(layer, 1), LAYER) for layer in layers]
    manifest = blob(json.dumps({"schemaVersion": 2, "layers": packed}).encode(), MANIFEST)
    (target / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}), encoding="ascii")
    (target / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', encoding="ascii")


@pytest.fixture(scope="session")  # as the library is: parts of this module may run apart
def shell_image(library: Path) -> Path:
    """A root file system with a shell and little else."""
    fill_shell(library / "directory")
    return library / "directory"


@pytest.fixture(scope="session")
def images(shell_image: Path, library: Path) -> None:
    """The same image in every form."""
    _write_layout(library / "layout", packed(shell_image))
    with tarfile.open(library / "archive.tar", "w") as archive:
        archive.add(library / "layout", arcname=".")


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("image", ["directory", "layout", "archive.tar"])
async def test_an_image_without_python_runs_commands_and_serves_files(
    cells: CellFactory, runtime: Runtime, image: str, shell_image: Path
) -> None:
    async with cells(runtime, image=image) as cell:
        shown = await cell.sh("cat /etc/marker; echo mine >/etc/mine; echo $PATH; pwd")
        await cell.write("/workspace/deep/file", b"\0binary\n")
        read = await cell.read("/workspace/deep/file")
        listed = await cell.sh("ls /workspace/deep; ls /usr/bin/python3")
        python = await cell.py("print(1)")
    assert shown.stdout.startswith(b"from the image\n")
    assert b"venv" not in shown.stdout, "nothing to be first on PATH"
    assert shown.stdout.endswith(b"/workspace\n")
    assert (read, listed.stdout) == (b"\0binary\n", b"file\n")
    assert python.outcome.reason is Reason.NOT_STARTED
    assert "add it with the package python3" in python.outcome.detail
    assert not (shell_image / "etc/mine").exists(), "an image is never written to"


@pytest.fixture(scope="session")
def python_image(library: Path) -> str:
    fill_python(library / "with-python")
    return "with-python"


async def test_an_image_with_python_gets_a_virtual_environment(
    cells: CellFactory, runtime: Runtime, python_image: str
) -> None:
    code = "import json, os, sys; print(json.dumps([sys.prefix, os.path.exists('/etc/marker')]))"
    async with cells(runtime, image=python_image) as cell:
        parked, plain = await cell.py(code), await cell.argv("python3", "-c", code)
    assert json.loads(parked.stdout) == ["/opt/venv", True], parked.stderr
    assert plain.stdout == parked.stdout


async def test_an_image_with_a_minimal_python_runs_it_as_it_is(
    cells: CellFactory, runtime: Runtime, python_image: str, library: Path
) -> None:
    image = library / f"minimal-{runtime}"
    shutil.copytree(library / python_image, image, symlinks=True)
    for venv in image.glob("usr/lib/python3*/venv"):
        shutil.rmtree(venv)
    async with cells(runtime, image=image.name) as cell:
        answer = await cell.py("import sys; print(sys.prefix)")
    assert answer.stdout == b"/usr\n"


async def test_an_image_whose_python_does_not_start_runs_everything_else(
    cells: CellFactory, runtime: Runtime, shell_image: Path, library: Path
) -> None:
    image = library / f"broken-{runtime}"
    shutil.copytree(shell_image, image, symlinks=True)
    (image / "usr/bin").mkdir(parents=True, exist_ok=True)
    (image / "usr/bin/python3").write_bytes(b"\x7fELF and nothing more")
    (image / "usr/bin/python3").chmod(0o755)
    async with cells(runtime, image=image.name) as cell:
        shown = await cell.sh("cat /etc/marker; echo $PATH")
        python = await cell.py("print(1)")
    assert shown.stdout.startswith(b"from the image\n")
    assert b"venv" not in shown.stdout
    assert python.outcome.exit_code != 0


@pytest.mark.parametrize("name", ["nothing", "/etc", "..", "../..", "../library", "link-out", ""])
async def test_an_image_is_only_what_the_operator_has_put_there(
    cells: CellFactory, runtime: Runtime, library: Path, name: str, shell_image: Path
) -> None:
    link = library / "link-out"
    if not link.is_symlink():
        link.symlink_to("/usr")
    async with cells(runtime, image=shell_image.name):
        pass  # the control
    with pytest.raises(InvalidSpec):
        async with cells(runtime, image=name):
            pass


def _member(name: str, kind: bytes, target: str = "", content: bytes = b"") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, target, len(content), 0o6755
    info.devmajor, info.devminor = 1, 1  # /dev/mem
    return info, content


def _layer(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def victim() -> Iterator[Path]:
    """A directory of the host; not below /tmp, which a sandbox has its own of."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory)


async def test_a_hostile_layer_writes_nothing_outside(
    cells: CellFactory, runtime: Runtime, library: Path, shell_image: Path, victim: Path
) -> None:
    evil = _layer(
        _member(f"../../../../../../..{victim}/dots", tarfile.REGTYPE, content=b"evil"),
        _member("out", tarfile.SYMTYPE, str(victim)),
        _member("out/through", tarfile.REGTYPE, content=b"evil"),
        _member("etc/memory", tarfile.CHRTYPE),
        _member("etc/disk", tarfile.BLKTYPE),
        _member("etc/harmless", tarfile.REGTYPE, content=b"control\n"),
    )
    _write_layout(library / f"evil-{runtime}", packed(shell_image), evil)
    async with cells(runtime, image=f"evil-{runtime}") as cell:
        control = await cell.sh("cat /etc/harmless")
        # Read by the agent, inside: the link leads to a directory of the image.
        inside = await cell.read("/out/through")
        devices = await cell.sh("ls /etc/memory /etc/disk")
    assert (control.stdout, inside) == (b"control\n", b"evil")
    assert devices.stdout == b""
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("target", ["etc/shadow", "../../../../../../etc/shadow", "/etc/shadow"])
async def test_a_hard_link_out_of_an_image_is_refused(
    cells: CellFactory, runtime: Runtime, library: Path, shell_image: Path, target: str
) -> None:
    name = f"linked-{runtime}-{hashlib.sha256(target.encode()).hexdigest()[:8]}"
    assert Path("/etc/shadow").exists(), "the control: there is something to be stolen"
    _write_layout(library / name, packed(shell_image), _layer(_member("etc/stolen", tarfile.LNKTYPE, target)))
    with pytest.raises(InvalidSpec, match="hard link"):
        async with cells(runtime, image=name):
            pass
