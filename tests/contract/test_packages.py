"""`apt-get install` in sandboxes of the host image: with the operator's setting it works, without it says what to do."""

from __future__ import annotations

import functools
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from k8e.apt import configuration
from k8e.egress.client import EgressClient
from k8e.egress.defaults import Registries
from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.identity.sealing import FileSealer
from k8e.model import MIB, Limits, Runtime
from k8e.server import egress_settings, local_settings
from k8e.settings import ServerSettings
from k8e.setup.provision import Provisioned
from k8e.substrate.local.machine import LocalMachine
from tests.support import apt_repository, named_daemon
from tests.support.cells import Cell, CellFactory, open_cell
from tests.support.leaks import Lend
from tests.support.networked import serve_files
from tests.support.prepared_images import use_prepared_images
from tests.support.substrates import over
from tests.support.upstreams import Upstream, upstream

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.not_bare,
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="this machine has no apt"),
]

HOST = "packages.example"
HELLO = "k8e-test-hello"
WORDS = "k8e-test-words"
PACKAGES = {
    WORDS: {f"usr/share/{WORDS}/words": "hello from a package\n"},
    HELLO: {
        f"usr/bin/{HELLO}": f"#!/bin/sh\ncat /usr/share/{WORDS}/words\n",
        f"usr/lib/{HELLO}/one": "#!/bin/sh\necho by an alternative\n",
        f"usr/share/doc/{HELLO}/readme": "read me\n",
        f"etc/{HELLO}.conf": "a = 1\n",
        "postinst": (
            f"#!/bin/sh\nset -e\nadduser --system --group --no-create-home --quiet {HELLO}\n"
            f"update-alternatives --install /usr/bin/{HELLO}-chosen {HELLO}-chosen /usr/lib/{HELLO}/one 10\n"
        ),
        "triggers": "activate-noawait ldconfig\n",
    },
}
INSTALL = f"apt-get update && apt-get install -y {HELLO}"


@pytest.fixture(scope="module")
def mirror(lend: Lend) -> Iterator[Upstream]:
    """A package host on the far side of the network."""
    repository = lend("repository") / "packages"
    apt_repository.publish(repository, PACKAGES, depends={HELLO: f"{WORDS}, adduser"})
    with upstream() as server:
        serve_files(server, 80, repository)
        yield server


@pytest.fixture(scope="module")
async def engine_with_apt(
    host: Provisioned, lend: Lend, mirror: Upstream, anyio_backend: object
) -> AsyncIterator[Engine]:
    """An engine as a server with `--allow-apt` has it, on a host whose apt knows the mirror and nothing else."""
    data_dir = lend("apt")
    (data_dir / "sources.list.d").mkdir()
    (data_dir / "sources.list").write_text(f"deb [trusted=yes] http://me:secret@{HOST}/ ./\n")
    (data_dir / "apt.conf").write_text(f'Dir::Etc "{data_dir}/";\n')
    apt = configuration.read({**os.environ, "APT_CONFIG": str(data_dir / "apt.conf")})
    server = ServerSettings(data_dir=data_dir)
    settings = EngineSettings(
        data_dir=data_dir / "engine",
        egress=egress_settings(server, Registries(), apt),
    )
    daemon = named_daemon.start(data_dir)
    # Reaped at once when it ends: a zombie would be a trace.
    reaper = threading.Thread(target=daemon.wait, name="named daemon")
    reaper.start()
    named_daemon.tell(data_dir, {HOST: mirror.address})
    async with EgressClient.open(data_dir) as network:
        use_prepared_images(data_dir)
        substrate = LocalMachine(local_settings(server, host, apt=apt), network)
        async with Engine.open(settings, over(substrate), FileSealer(data_dir / "secrets.key")) as engine:
            yield engine
            await engine.destroy_all()
    reaper.join()


@pytest.fixture
def with_apt(engine_with_apt: Engine) -> CellFactory:
    return functools.partial(open_cell, engine_with_apt)


def _of_the_host() -> dict[str, tuple[int, int, int]]:
    """What would tell that the host was written to."""
    places = ["/usr/bin", "/usr/lib", "/usr/share", "/usr/share/doc", "/etc", "/etc/alternatives", "/etc/ld.so.cache"]
    places += ["/var/lib/dpkg", "/var/lib/dpkg/status", "/var/lib/dpkg/info", "/usr/bin/env", "/etc/passwd"]
    stats = {place: Path(place).stat() for place in places}
    return {place: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for place, stat in stats.items()}


async def test_a_package_is_installed_in_its_own_sandbox_alone(with_apt: CellFactory, runtime: Runtime) -> None:
    before = _of_the_host()
    async with with_apt(runtime) as cell, with_apt(runtime) as neighbour:
        installed = await cell.sh(INSTALL, timeout_s=120)
        assert installed.outcome.exit_code == 0, installed.stdout + installed.stderr
        used = await cell.sh(
            f"{HELLO}; {HELLO}-chosen; grep -c ^{HELLO}: /etc/passwd; dpkg-query -Wf '${{Status}}' {WORDS}"
        )
        assert used.stdout == b"hello from a package\nby an alternative\n1\ninstall ok installed", used.stderr
        removed = await cell.sh("rm -rf /usr/share/doc && echo evil >/usr/bin/env && ls /usr/share/doc /usr/bin/env")
        assert removed.stdout == b"/usr/bin/env\n"
        elsewhere = await neighbour.sh(
            f"ls /usr/bin/{HELLO} /etc/{HELLO}.conf; dpkg -s {WORDS}; ls -d /usr/share/doc; env -i true"
        )
        assert (elsewhere.stdout, elsewhere.outcome.exit_code) == (b"/usr/share/doc\n", 0)
        gone = await cell.sh(f"apt-get purge -y {HELLO} && ! ls /usr/bin/{HELLO}", timeout_s=120)
        assert gone.outcome.exit_code == 0, gone.stdout + gone.stderr
    assert _of_the_host() == before


async def test_what_a_sandbox_sees_of_the_host_has_no_secret(with_apt: CellFactory, runtime: Runtime) -> None:
    async with with_apt(runtime) as cell:
        shown = await cell.sh(
            "cat /etc/apt/sources.list.d/*; grep -r secret /etc/apt; awk '$2 == \"/usr\" {print $4}' /proc/mounts"
        )
        full = await cell.sh("apt-get install -y --dry-run bash && ls -l /var/lib/dpkg/status")
    assert f"URIs: http://{HOST}/\n".encode() in shown.stdout
    assert b"secret" not in shown.stdout
    assert b"nosuid" in shown.stdout.splitlines()[-1]
    assert full.outcome.exit_code == 0, "the host's packages count as installed"


async def test_what_is_written_to_usr_counts_against_the_disk(with_apt: CellFactory, runtime: Runtime) -> None:
    async with with_apt(runtime, limits=Limits(disk_bytes=64 * MIB)) as cell:
        small = await cell.sh("head -c 8M /dev/zero >/usr/lib/small")
        large = await cell.sh("head -c 80M /dev/zero >/usr/lib/large")
    assert small.outcome.exit_code == 0, "the control"
    assert b"No space left" in large.stderr


async def test_a_list_of_the_callers_own_takes_the_place_of_the_mirrors(
    with_apt: CellFactory, runtime: Runtime, mirror: Upstream
) -> None:
    before = mirror.accepted[80]
    async with with_apt(runtime, allowed_hosts=("other.example",)) as cell:
        refused = await cell.sh("apt-get -o APT::Update::Error-Mode=any -o Acquire::Retries=0 update", timeout_s=120)
        assert refused.outcome.exit_code == 100
        assert mirror.accepted[80] == before
    async with with_apt(runtime, allowed_hosts=("other.example", HOST)) as cell:
        listed = await cell.sh("apt-get -o APT::Update::Error-Mode=any -o Acquire::Retries=0 update", timeout_s=120)
    assert listed.outcome.exit_code == 0, listed.stderr + listed.stdout


@pytest.mark.shares_sandbox
@pytest.mark.parametrize(
    "command",
    [
        "apt-get install -y tree",
        "apt install tree",
        "apt-get -o Debug::NoLocking=1 update",
        "DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install tree",
        "bash -lc 'apt-get update'",
    ],
)
async def test_without_the_setting_apt_says_what_to_do(cell: Cell, command: str) -> None:
    told = await cell.sh(command)
    assert (told.outcome.exit_code, told.stdout) == (100, b"")
    lines = told.stderr.decode().splitlines()
    assert len(lines) == 2
    assert "--image" in lines[1]
    assert "--allow-apt" in lines[1]


@pytest.mark.shares_sandbox
async def test_without_the_setting_the_rest_of_apt_is_as_it_was(cell: Cell) -> None:
    version = await cell.sh("apt-get --version")
    assert version.stdout.startswith(b"apt ")
    cache = await cell.sh("apt-cache search install; apt search install; apt-get help | head -1")
    assert b"--allow-apt" not in cache.stdout + cache.stderr
    assert (await cell.sh("touch /usr/bin/new")).outcome.exit_code == 1
