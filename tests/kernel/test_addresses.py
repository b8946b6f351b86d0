"""The server takes its address before it makes anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from k8e.client import SandboxClient
from k8e.setup.provision import Provisioned
from tests.support.servers import Server


def test_an_address_that_is_taken_ends_the_start_before_anything_is_made(data_dir: Path, host: Provisioned) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = Server(data_dir, "--pool-min", "1", listen=address)
        with pytest.raises(RuntimeError, match=f"cannot listen on {address}, "):
            server.start()
    # Nothing has to be removed: the harness would find a sandbox of the pool, and there is not even a record of one.
    assert not list(data_dir.rglob("engine.sqlite"))
    assert not list(data_dir.glob("sandboxes/*"))

    again = Server(data_dir, "--pool-min", "1", listen=address)
    again.start()
    with SandboxClient(target=again.target()) as client:
        assert client.run("print('there')", "python").stdout == "there\n"
    again.destroy()
