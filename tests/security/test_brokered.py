"""Brokered secrets end to end, on both runtimes: the host gets the value, nothing inside ever does."""

from __future__ import annotations

import asyncio
import base64
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from k8e.egress.authority import Authority
from k8e.egress.client import EgressClient
from k8e.egress.layout import Home
from k8e.engine.engine import Engine
from k8e.engine.settings import EgressSettings, EngineSettings
from k8e.errors import InvalidSpec
from k8e.identity.sealing import FileSealer
from k8e.model import Brokered, Code, Command, EgressMode, Language, Runtime, SessionSpec
from k8e.setup.provision import Provisioned
from tests.support import named_daemon
from tests.support.cells import OWNER, Cell, open_cell
from tests.support.engines import machine_for
from tests.support.https_hosts import Told, serve_http, serve_https
from tests.support.leaks import Lend
from tests.support.substrates import over
from tests.support.upstreams import upstream
from tests.support.written import contents

pytestmark = pytest.mark.anyio

API, OTHER = "api.example", "other.example"
VALUE = "sk-live-NEVER-inside-7d1f0c33a9"
BROKERED = Brokered(secret_name="api", key="token", env_var="TOKEN", host=API)


@dataclass(slots=True)
class World:
    """An engine whose sandboxes have a network with two hosts in it."""

    data_dir: Path
    public: Authority
    host: Provisioned
    told: dict[str, Told]
    in_the_open: dict[str, Told]

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        settings = EngineSettings(
            data_dir=self.data_dir / "engine",
            egress=EgressSettings(ca_bundle=self.public.certificate.encode()),
        )
        async with EgressClient.open(self.data_dir, trust=self.public.certificate.encode()) as network:
            sealer = FileSealer(self.data_dir / "secrets.key")
            async with Engine.open(
                settings, over(machine_for(self.data_dir, self.host, network), max=1), sealer
            ) as engine:
                yield engine


@contextmanager
def open_world(data_dir: Path, host: Provisioned) -> Iterator[World]:
    with ExitStack() as stack:
        far = stack.enter_context(upstream())
        public = Authority.new()
        told = serve_https(far, public, API, OTHER)
        in_the_open = serve_http(far, API, OTHER)
        stack.callback(_end, named_daemon.start(data_dir))
        named_daemon.tell(data_dir, {API: far.address, OTHER: far.address})
        yield World(data_dir, public, host, told, in_the_open)


@pytest.fixture(scope="module")
def world(lend: Lend, host: Provisioned) -> Iterator[World]:
    with open_world(lend("brokered"), host) as world:
        yield world


@pytest.fixture(scope="module")
async def brokering(world: World, anyio_backend: object) -> AsyncIterator[Engine]:
    async with world.engine() as engine:
        await engine.set_secret(OWNER, "api", "token", VALUE.encode())
        yield engine
        await engine.destroy_all()


@pytest.fixture
async def cell(brokering: Engine, runtime: Runtime) -> AsyncIterator[Cell]:
    async with open_cell(brokering, runtime, brokered=(BROKERED,), allowed_hosts=(OTHER,)) as cell:
        yield cell


CURL = 'curl -sS -i --compressed -H "Authorization: Bearer $TOKEN" '
PYTHON = f"""
import os, urllib.request
asked = urllib.request.Request("https://{API}/python", headers={{"Authorization": "Bearer " + os.environ["TOKEN"]}})
answer = urllib.request.urlopen(asked)
print(answer.headers, answer.read().decode())
"""
NODE = f"""
require("https").get("https://{API}/node", {{headers: {{Authorization: "Bearer " + process.env.TOKEN}}}}, (answer) => {{
  console.log(answer.headers); answer.on("data", (data) => console.log(data.toString()));
}});
"""


async def test_ordinary_programs_use_the_placeholder_and_never_see_the_value(cell: Cell, world: World) -> None:
    await cell.write("/tmp/ask.py", PYTHON.encode())
    await cell.write("/tmp/ask.js", NODE.encode())
    word = (await cell.sh('printf %s "$TOKEN"')).stdout.decode()
    for path, command in (
        ("/curl", f"{CURL} https://{API}/curl"),
        ("/basic", f'curl -sS -i -u "me:$TOKEN" https://{API}/basic'),
        ("/python", "python3 /tmp/ask.py"),
        ("/node", "node /tmp/ask.js"),
    ):
        result = await cell.sh(command, timeout_s=60.0)
        assert result.outcome.exit_code == 0, (command, result)
        target, headers, _ = world.told[API].requests[-1]
        assert (target, _plain(headers["authorization"])) == (path, VALUE)
        shown = result.stdout + result.stderr
        assert VALUE.encode() not in shown
        assert base64.b64encode(b"me:" + VALUE.encode())[8:-4] not in shown
        assert word[:20].encode() in shown or path == "/basic"


async def test_the_value_is_nowhere_inside(cell: Cell, runtime: Runtime) -> None:
    await cell.sh(f"{CURL} https://{API}/ > /tmp/answer; echo $TOKEN > /tmp/marker", timeout_s=60.0)
    word = (await cell.sh('printf %s "$TOKEN"')).stdout.decode()
    search = (
        "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' > /tmp/found; "
        "find / -xdev -type f -size -8M -not -path '/proc/*' -not -path '/sys/*' -not -path '/usr/*' 2>/dev/null | "
        "xargs -d '\\n' cat 2>/dev/null >> /tmp/found; "
        "grep -c -a -e $1 /tmp/found"
    )
    counts = {}
    for text in (word, VALUE):
        pattern = f"{text[:-1]}[{text[-1]}]"  # which does not find itself
        counts[text] = (await cell.argv("sh", "-c", search, "search", pattern, timeout_s=110.0)).stdout
    assert int(counts[word]) > 0
    assert int(counts[VALUE]) == 0


async def test_another_host_gets_no_value(cell: Cell, world: World) -> None:
    result = await cell.sh(f"{CURL} https://{OTHER}/", timeout_s=60.0)
    assert result.outcome.exit_code == 0, result
    _, headers, _ = world.told[OTHER].requests[-1]
    assert headers["authorization"].startswith("Bearer k8e_")
    assert VALUE not in world.told[OTHER].everything()


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (f"http://{OTHER}/", '-H "Authorization: Bearer $TOKEN"'),
        (f"http://{API}/", '-H "Authorization: Bearer $TOKEN"'),
        (f"http://{OTHER}/?t=$TOKEN", ""),
        (f"http://{OTHER}/", '-u "me:$TOKEN"'),
        (f"http://{OTHER}/", '-d "word=$TOKEN"'),
        (f"https://{API}/", '-H "X-Other: $TOKEN"'),
        (f"https://{API}/?t=$TOKEN", ""),
    ],
    ids=[
        "another host, in the open",
        "the host, in the open",
        "an address, in the open",
        "credentials, in the open",
        "a body, in the open",
        "another header",
        "the address",
    ],
)
async def test_a_placeholder_in_the_wrong_place_is_blocked_and_reported(
    cell: Cell, world: World, target: str, options: str
) -> None:
    before = [len(each.requests) for each in (*world.told.values(), *world.in_the_open.values())]
    result = await cell.sh(f'curl -sS -f {options} "{target}"', timeout_s=60.0)
    assert result.outcome.exit_code != 0
    (denied,) = result.egress_denied
    assert "placeholder" in denied.reason
    assert denied.host in target
    assert [len(each.requests) for each in (*world.told.values(), *world.in_the_open.values())] == before
    control = await cell.sh(f'curl -sS -f "{target.split("?")[0]}"', timeout_s=60.0)
    assert (control.outcome.exit_code, control.egress_denied) == (0, ())


async def test_a_changed_secret_is_used_at_once_and_a_deleted_one_no_longer(
    brokering: Engine, runtime: Runtime, world: World
) -> None:
    await brokering.set_secret(OWNER, "changing", "token", b"the first of two values")
    changing = Brokered(secret_name="changing", key="token", env_var="TOKEN", host=API)
    async with open_cell(brokering, runtime, brokered=(changing,)) as cell:
        for value in ("the first of two values", "the second of two values"):
            await brokering.set_secret(OWNER, "changing", "token", value.encode())
            assert (await cell.sh(f"{CURL} https://{API}/", timeout_s=60.0)).outcome.exit_code == 0
            assert world.told[API].requests[-1][1]["authorization"] == f"Bearer {value}"
        await brokering.delete_secret(OWNER, "changing")
        before = len(world.told[API].requests)
        denied = await cell.sh(f"{CURL} -f https://{API}/", timeout_s=60.0)
        assert denied.outcome.exit_code != 0
        assert [each.reason for each in denied.egress_denied] == [
            "the secret behind this placeholder is gone, or not here yet"
        ]
        assert len(world.told[API].requests) == before


async def test_a_child_has_a_placeholder_of_its_own(cell: Cell, brokering: Engine, world: World) -> None:
    child = Cell(brokering, (await brokering.run_subagent(OWNER, cell.id)).session_id)
    words = [(await each.sh('printf %s "$TOKEN"')).stdout for each in (cell, child)]
    assert words[0] != words[1]
    assert (await child.sh(f"{CURL} https://{API}/", timeout_s=60.0)).outcome.exit_code == 0
    assert world.told[API].requests[-1][1]["authorization"] == f"Bearer {VALUE}"
    # The parent's is worth nothing in the child's hands.
    await child.sh(f"{CURL} https://{API}/", env={"TOKEN": words[0].decode()}, timeout_s=60.0)
    assert world.told[API].requests[-1][1]["authorization"] == f"Bearer {words[0].decode()}"


async def test_neither_list_nor_network_can_be_left_out(brokering: Engine, runtime: Runtime) -> None:
    for options in ({"network": EgressMode.NONE}, {"allowed_hosts": (f"!{API}",)}):
        with pytest.raises(InvalidSpec):
            async with open_cell(brokering, runtime, brokered=(BROKERED,), **options):
                pass


async def test_the_value_is_not_written_down_on_the_host(cell: Cell, world: World, brokering: Engine) -> None:
    await cell.sh(f"{CURL} https://{API}/", timeout_s=60.0)
    word = (await cell.sh('printf %s "$TOKEN"')).stdout
    home = Home.of(world.data_dir)
    written = contents(home.members, home.log, world.data_dir / "engine")
    assert any(word in content for content in written.values())
    assert [path for path, content in written.items() if VALUE.encode() in content] == []
    events = (await brokering.events(OWNER, cell.id)).events
    assert VALUE not in "".join(events)
    arguments = await asyncio.to_thread(lambda: b"".join(map(_arguments, Path("/proc").glob("[0-9]*/cmdline"))))
    assert VALUE.encode() not in arguments
    assert b"named_daemon" in arguments


WAITING = f"""
import os, pathlib, ssl, time, urllib.request
trusted = ssl.create_default_context()
print("ready", flush=True)
while not pathlib.Path("/tmp/go").exists():
    time.sleep(0.05)
asked = urllib.request.Request("https://{API}/later", headers={{"Authorization": "Bearer " + os.environ["TOKEN"]}})
print(urllib.request.urlopen(asked, context=trusted).status)
"""


async def test_a_program_that_began_before_the_server_restarted_goes_on(
    data_dir: Path, host: Provisioned, runtime: Runtime
) -> None:
    with open_world(data_dir, host) as world:
        async with world.engine() as engine:
            await engine.set_secret(OWNER, "api", "token", VALUE.encode())
            view = await engine.create_session(OWNER, SessionSpec(runtime=runtime, brokered=(BROKERED,)))
            run = await engine.start_run(OWNER, view.session_id, Command(what=Code(Language.PYTHON, WAITING)))
            while b"ready" not in (await engine.poll_run(OWNER, run.run_id)).stdout:
                await asyncio.sleep(0.05)
        async with world.engine() as engine:
            cell = Cell(engine, view.session_id)
            await cell.sh("touch /tmp/go")
            async for item in engine.open_run(OWNER, run.run_id):
                outcome = item
            assert (await engine.poll_run(OWNER, run.run_id)).stdout.split() == [b"ready", b"200"], outcome
            target, headers, _ = world.told[API].requests[-1]
            assert (target, headers["authorization"]) == ("/later", f"Bearer {VALUE}")
            assert (await cell.sh(f"{CURL} https://{API}/again", timeout_s=60.0)).outcome.exit_code == 0
            assert world.told[API].requests[-1][1]["authorization"] == f"Bearer {VALUE}"
            await engine.destroy_all()


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """It goes by itself when its last client has left and nobody is attached."""
    try:
        daemon.wait(60)
    finally:
        daemon.kill()
        daemon.wait()


def _plain(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    return token if scheme == "Bearer" else base64.b64decode(token).decode().partition(":")[2]


def _arguments(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended since
