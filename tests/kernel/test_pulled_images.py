"""Images by name, from a registry to a session: through the command line, the SDK, a restart and the warm pool."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.client import ImageProgress, InvalidRequest, SandboxClient
from k8e.setup.provision import Provisioned
from tests.support.eventually import eventually
from tests.support.image_roots import fill_shell, packed
from tests.support.registry import Handler, Registry, TestImage, layer, member, serving
from tests.support.servers import Server

SHOW = "cat /etc/marker /etc/layer; echo $GREETING; command -v tool"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as registry:
        yield registry


@pytest.fixture
def image(registry: Registry, tmp_path: Path) -> TestImage:
    fill_shell(tmp_path / "root")
    top = layer(member("etc/layer", b"the second layer\n"), member("tools/bin/tool", b"#!/bin/sh\n"))
    variables = {"GREETING": "hello", "PATH": "/tools/bin:/usr/bin:/bin"}
    return registry.put("library/tool:1", packed(tmp_path / "root"), top, env=variables)


@pytest.fixture
def server(host: Provisioned, data_dir: Path, registry: Registry, image: TestImage) -> Iterator[Server]:
    flags = ("--image-registries", registry.address, "--default-image", "tool:1", "--pool-min", "1", "--pool-max", "1")
    server = Server(data_dir, *flags)
    server.start()
    yield server
    server.destroy()


def away(handler: Handler) -> bool:
    handler.answer(500)
    return True


@pytest.mark.timeout(300)
def test_a_session_of_an_image_by_name(server: Server, registry: Registry, image: TestImage) -> None:
    exact = f"{registry.address}/library/tool:1@{image.digest}"
    with SandboxClient(target=server.target()) as client:
        heard: list[ImageProgress] = []
        assert client.pull_image("tool:1", heard=heard.append) == exact
        assert heard[-1].phase == "ready"
        for runtime in ("gvisor", "container"):
            with client.create(runtime, image="tool:1") as session:
                assert session.exec(SHOW).stdout == "from the image\nthe second layer\nhello\n/tools/bin/tool\n"
                assert session.info().image == exact
        with pytest.raises(InvalidRequest, match="none of this server's registries"):
            client.create(image="elsewhere.example.com/tool:1")
        with pytest.raises(InvalidRequest, match="has no 9"):
            client.create(image="tool:9")

        # The default image is one, too, and kept warm.
        def is_warm() -> bool:
            with client.create() as session:
                return session.info().warm and session.info().image == exact

        assert eventually(is_warm)
    assert registry.pulled(image.blobs[1]) == 1, "the pool, the sessions and the pull share it"

    server.kill()
    registry.fault = away
    server.start()
    with SandboxClient(target=server.target()) as client, client.create(image="tool:1") as session:
        assert session.exec("echo $GREETING").stdout == "hello\n"


@pytest.mark.timeout(300)
def test_the_command_line_shows_how_far_it_is(server: Server, registry: Registry, image: TestImage) -> None:
    other = registry.put("team/other:1", layer(member("etc/other", b"x" * 5_000_000)))
    argv = [sys.executable, "-m", "k8e", "sandbox"]

    def called(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*argv, *words], env=server.environ, capture_output=True, text=True, check=False)

    first = called("pull", f"{registry.address}/team/other:1")
    assert json.loads(first.stdout) == {"image": f"{registry.address}/team/other:1@{other.digest}"}, first.stderr
    lines = first.stderr.splitlines()
    assert any("asking its registry" in line for line in lines)
    assert any("downloading" in line and "MB" in line for line in lines)
    assert any("unpacking" in line for line in lines)
    again = called("pull", f"{registry.address}/team/other:1")
    assert (again.stdout, again.stderr) == (first.stdout, "")
    made = called("create", "--image", "tool:1")
    assert "session_id" in json.loads(made.stdout), made.stderr
    refused = called("create", "--image", "no.example.com/tool")
    assert refused.returncode == 1
    assert "--image-registries" in json.loads(refused.stdout)["detail"]
