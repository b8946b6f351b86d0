"""docs/images.md is true: its commands run, with a registry that has the image they name."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.setup.provision import Provisioned
from tests.support.image_roots import fill_python, packed
from tests.support.registry import serving
from tests.support.servers import NO_POOL, Server

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "images.md").read_text(encoding="utf-8")


@pytest.fixture
def server(host: Provisioned, data_dir: Path, tmp_path: Path) -> Iterator[Server]:
    fill_python(tmp_path / "root")
    with serving() as registry:
        registry.put("library/python:3.12-slim", packed(tmp_path / "root"))
        server = Server(data_dir, *NO_POOL, "--image-registries", registry.address)
        server.start()
        yield server
        server.destroy()


@pytest.mark.timeout(300)
def test_the_commands_answer_as_the_document_says(server: Server) -> None:
    found = re.search(r"^```sh\n(.*?)^```$\n\n```text\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert found is not None
    script = f'k8e() {{ "{sys.executable}" -m k8e "$@"; }}\n{found[1]}'
    done = subprocess.run(["bash", "-c", script], env=server.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(".*?".join(map(re.escape, found[2].split("…"))), done.stdout), done.stdout
