"""Ways out of a sandbox, tried as root inside a real session, on both runtimes: each beside what does get through.

What only the host's root could try in the sandbox's place is tried in its namespace. Powers over its own link are in
`test_network_powers.py`, floods of thousands in `tests/kernel/test_egress_plane.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import inspect
import json
import os
import secrets
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from k8e.egress import netns
from k8e.egress.client import EgressClient
from k8e.egress.layout import Home
from k8e.egress.links import Slot
from k8e.egress.ruleset import GATEWAY, PROXY_PORT, address
from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.model import Argv, Command, Decision, Limits, Outcome, Runtime, SandboxId, Verdict
from k8e.setup.provision import Provisioned
from tests.support import escapee, named_daemon
from tests.support.cells import OWNER, Cell, open_cell
from tests.support.engines import RUNTIMES, machine_for
from tests.support.hellos import client_hello, in_records
from tests.support.https_hosts import Told, serve_http
from tests.support.leaks import Lend
from tests.support.networked import TALK, World
from tests.support.servers import Server
from tests.support.substrates import over
from tests.support.taps import tap
from tests.support.upstreams import Upstream, upstream
from tests.support.wires import Wire, checksum, ipv4, udp

pytestmark = pytest.mark.anyio

ALLOWED, SECOND, OTHER = "allowed.example", "second.example", "other.example"
"""Two that the attacker may reach, and one that is there as well."""
THEIRS = "theirs.example"
"""The neighbour's."""
DNS, WEB, TLS, DOT = 53, 80, 443, 853
A, NULL, TXT, AAAA, HTTPS, ANY = 1, 10, 16, 28, 65, 255
NO_ERROR, FORMAT_ERROR, NO_SUCH_NAME, REFUSED = 0, 1, 3, 5
HELLO = b"hello".hex()
CAP = 32
PATIENCE_S = 60.0
PAUSE_S = 0.02
SILENCE_S = 0.4
INSIDE = "/workspace/escapee.py"

Attempts = dict[str, dict[str, Any]]


# --- what is outside ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Outside:
    """A far server at which every name of these tests is at home, and what it was ever told."""

    far: Upstream
    web: dict[str, Told]
    host: Upstream
    """On every address of the host."""
    port: int
    """Where it listens, and the far server too."""
    heard: list[bytes] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)
    """The last word of each conversation that is over."""

    @property
    def allowed(self) -> tuple[str, ...]:
        """The attacker's list."""
        return (ALLOWED, f"{ALLOWED}:{TALK}", SECOND, f"{SECOND}:{TALK}", f"*.rebind.example:{self.port}")

    @property
    def names(self) -> dict[str, str]:
        return dict.fromkeys((ALLOWED, SECOND, OTHER, THEIRS), self.far.address)

    def has_heard(self, word: bytes) -> bool:
        return any(word in each for each in self.heard)

    def converse(self, connection: socket.socket) -> None:
        word = b""
        try:
            while data := connection.recv(1 << 16):
                word = data
                self.heard.append(data)
                connection.sendall(data)
        finally:
            self.ended.append(word)


@pytest.fixture(scope="module")
def outside(world: World) -> Iterator[Outside]:
    host = Upstream(os.open("/proc/self/ns/net", os.O_RDONLY), "0.0.0.0")
    with contextlib.closing(host), upstream() as far:
        outside = Outside(far, serve_http(far, ALLOWED, SECOND, OTHER), host, _listening(host))
        for port in (TALK, TLS, DNS, DOT, outside.port):
            far.listen(port, outside.converse)
        world.names(outside.names)
        yield outside
        world.names({})


def _listening(host: Upstream) -> int:
    """A port of the host on which it echoes from now on: ports are everybody's, so one that nobody else has just now."""
    while True:
        port = secrets.randbelow(10_000) + 20_000
        with contextlib.suppress(OSError):
            host.echo(port)
            return port


def _own_addresses(outside: Outside) -> list[str]:
    """The host's, without those that other tests give it for a while."""
    listing = subprocess.run(["ip", "-j", "-4", "address"], check=True, capture_output=True).stdout
    lasting = [each for each in json.loads(listing) if not each["ifname"].startswith("kt")]
    first, _, last = outside.far.address.rpartition(".")
    return [*(info["local"] for each in lasting for info in each["addr_info"]), f"{first}.{int(last) - 1}"]


def _say(to: str, port: int, data: bytes = b"hello") -> bytes:
    """The control of what is denied inside: the host itself can."""
    with socket.create_connection((to, port), timeout=PATIENCE_S) as sock:
        sock.sendall(data)
        return sock.recv(len(data))


def _word() -> bytes:
    """That occurs nowhere else; also as a label of a name."""
    return f"escape{secrets.token_hex(6)}".encode()


# --- who is inside -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Serves whoever reaches it, and writes down what it hears."""

    cell: Cell
    address: str
    synthetic: str
    """What stands for its own host, to it."""

    async def heard(self) -> bytes:
        return await self.cell.read("/workspace/heard")


@pytest.fixture(params=RUNTIMES, ids=str, scope="module")
def runtime(request: pytest.FixtureRequest) -> Runtime:
    chosen: Runtime = request.param
    return chosen


@contextlib.asynccontextmanager
async def _inside(engine: Engine, runtime: Runtime, **options: Any) -> AsyncIterator[Cell]:
    async with open_cell(engine, runtime, **options) as cell:
        await cell.write(INSIDE, inspect.getsource(escapee).encode())
        yield cell


@pytest.fixture(scope="module")
async def attacker(runtime: Runtime, world: World, outside: Outside) -> AsyncIterator[Cell]:
    async with _inside(world.engine, runtime, allowed_hosts=outside.allowed) as cell:
        yield cell


@pytest.fixture(scope="module")
async def neighbour(runtime: Runtime, world: World, outside: Outside) -> AsyncIterator[Neighbour]:
    listed = (f"{THEIRS}:{TALK}", f"*.{THEIRS}:{TALK}")
    async with _inside(world.engine, runtime, allowed_hosts=listed) as cell:
        serving = {"serve": {"what": "serve", "port": TALK, "heard": "/workspace/heard"}}
        run = await cell.engine.start_run(OWNER, cell.id, _command(serving))
        await anext(aiter(cell.engine.open_run(OWNER, run.run_id)))  # it serves
        # Its book shall be longer than anybody else's.
        await _try(cell, {str(number): _ask(f"n{number}.{THEIRS}") for number in range(20)})
        own = await _try(cell, {"address": {"what": "address"}, "name": _ask(THEIRS)})
        yield Neighbour(cell, own["address"], own["name"]["address"])


def _command(attempts: Attempts) -> Command:
    return Command(what=Argv(("python3", INSIDE, json.dumps(attempts))), timeout_s=600)


async def _try(cell: Cell, attempts: Attempts) -> dict[str, Any]:
    done = await cell.argv("python3", INSIDE, stdin=json.dumps(attempts).encode(), timeout_s=60)
    assert done.outcome.exit_code == 0, done
    outcomes: dict[str, Any] = json.loads(done.stdout)
    return outcomes


async def _try_in_two(cell: Cell, attempts: Attempts, between: Callable[[], Awaitable[object]]) -> dict[str, Any]:
    """An attempt that stops half-way until something has been done outside."""
    stream = await cell.engine.open_exec(OWNER, cell.id, _command(attempts))
    said = b""
    try:
        async for item in stream:
            if isinstance(item, Outcome):
                break
            said += item.payload
            if said == b"ready\n":
                await between()
                await cell.write("/workspace/go", b"")
    finally:
        await stream.close()
    outcomes: dict[str, Any] = json.loads(said.splitlines()[-1])
    return outcomes


def _to(to: str, port: int, say: bytes = b"hello", **how: Any) -> dict[str, Any]:
    return {"what": "tcp", "to": [to, port], "say": say.hex(), **how}


def _datagram(to: str, port: int, say: bytes, **how: Any) -> dict[str, Any]:
    return {"what": "udp", "to": [to, port], "say": say.hex(), **how}


def _ask(name: str, kind: int = A, **how: Any) -> dict[str, Any]:
    return {"what": "dns", "name": name, "kind": kind, **how}


def _web(*requests: bytes, to: str = ALLOWED) -> dict[str, Any]:
    return {"what": "web", "to": [to, WEB], "requests": [request.hex() for request in requests]}


def _get(host: str, target: str = "/", *more: str) -> bytes:
    return "\r\n".join([f"GET {target} HTTP/1.1", f"Host: {host}", *more, "", ""]).encode()


def _all_failed(outcomes: dict[str, Any]) -> bool:
    return outcomes != {} and all(str(each).startswith("failed") for each in outcomes.values())


async def _decisions(cell: Cell) -> list[Decision]:
    return [decision async for decision in cell.engine.egress(OWNER, cell.id)]


async def _decided(cell: Cell, name: str) -> None:
    """Wait until the session is told of a decision about a name."""
    async with asyncio.timeout(PATIENCE_S):
        while not any(decision.name == name for decision in await _decisions(cell)):
            await asyncio.sleep(PAUSE_S)


# --- addresses and names -----------------------------------------------------------------------------------------------


async def test_an_address_that_stands_for_no_name_here_leads_nowhere(
    attacker: Cell, neighbour: Neighbour, outside: Outside
) -> None:
    word, far = _word(), outside.far.address
    raw = {f"raw {port}": _to(far, port, word) for port in (TALK, TLS, WEB, DNS)}
    theirs = {"theirs": _to(neighbour.synthetic, TALK, word), "nobody's": _to("198.19.1.1", TALK, word)}
    assert _all_failed(await _try(attacker, {**raw, **theirs}))
    assert not outside.has_heard(word)
    # The controls: the same server by its name, the same address by the one it was given to.
    assert await _try(attacker, {"name": _to(ALLOWED, TALK, word)}) == {"name": word.hex()}
    assert await _try(neighbour.cell, {"own": _to(neighbour.synthetic, TALK)}) == {"own": HELLO}
    assert outside.has_heard(word)


async def test_a_client_hello_for_anybody_else_does_not_get_out(attacker: Cell, outside: Outside) -> None:
    literal = outside.far.address.encode()
    right = {
        "its name": client_hello(ALLOWED),
        "nobody, so its host": client_hello(None),
        "in pieces": in_records(client_hello(ALLOWED), 40),
        "in odd letters": client_hello(ALLOWED.upper()),
    }
    wrong = {
        "another": client_hello(OTHER),
        "another that may be reached": client_hello(SECOND),
        "another in pieces": in_records(client_hello(OTHER), 40),
        "a longer one": client_hello(f"{ALLOWED}.{OTHER}"),
        "an address": client_hello("a" * len(literal)).replace(b"a" * len(literal), literal),
        "a cut one": client_hello(ALLOWED, grease=True).replace(ALLOWED.encode(), ALLOWED[:-1].encode() + b"\0"),
        "no TLS": b"SSH-2.0-escape\r\n" + bytes(64),
        "a request for another": _get(OTHER),
    }
    attempts = {name: _to(ALLOWED, TLS, hello) for name, hello in (right | wrong).items()}
    # DNS over HTTPS, to a resolver by its name and by its address.
    attempts |= {"DoH": _to(OTHER, TLS, client_hello(OTHER))}
    attempts |= {"DoH by address": _to(outside.far.address, TLS, client_hello(OTHER))}
    outcomes = await _try(attacker, attempts)
    assert {name: outcomes.pop(name) for name in right} == {name: hello.hex() for name, hello in right.items()}
    assert _all_failed(outcomes), outcomes
    assert [name for name, hello in wrong.items() if outside.has_heard(hello[:64])] == []


async def test_every_request_on_a_kept_connection_is_for_its_own_host(attacker: Cell, outside: Outside) -> None:
    hidden = b"0\r\n\r\n" + _get(OTHER)
    two_lengths = (
        f"POST / HTTP/1.1\r\nHost: {ALLOWED}\r\nTransfer-Encoding: chunked\r\nContent-Length: {len(hidden)}\r\n"
    )
    told = await _try(
        attacker,
        {
            "the control": _web(_get(ALLOWED), _get(ALLOWED), _get(ALLOWED, f"http://{ALLOWED}/")),
            "another": _web(_get(ALLOWED), _get(OTHER)),
            "another that may be reached": _web(_get(ALLOWED), _get(SECOND)),
            "an address": _web(_get(ALLOWED), _get(outside.far.address)),
            "another's target": _web(_get(ALLOWED), _get(ALLOWED, f"http://{OTHER}/")),
            "another's name and password": _web(_get(ALLOWED), _get(f"{ALLOWED}@{OTHER}")),
            "two hosts": _web(_get(ALLOWED), _get(ALLOWED, "/", f"Host: {OTHER}")),
            "a tunnel": _web(_get(ALLOWED), f"CONNECT {OTHER}:443 HTTP/1.1\r\nHost: {ALLOWED}\r\n\r\n".encode()),
            "two lengths": _web(_get(ALLOWED), two_lengths.encode() + b"\r\n" + hidden),
        },
    )
    assert told.pop("the control") == ["200", "200", "200"]
    assert {name: each for name, each in told.items() if each != ["200", "failed"]} == {}
    await _try(attacker, {"at once": _web(_get(ALLOWED) + _get(OTHER))})
    assert (outside.web[OTHER].requests, outside.web[SECOND].requests) == ([], [])
    asked = http.client.HTTPConnection(outside.far.address, WEB, timeout=PATIENCE_S)
    with contextlib.closing(asked):
        asked.request("GET", "/", headers={"Host": OTHER})
        assert asked.getresponse().status == 200, "the control: whoever reaches it is answered"
    outside.web[OTHER].requests.clear()


async def test_questions_carry_nothing_out(attacker: Cell, world: World, outside: Outside) -> None:
    label, after = _word().decode(), _word()
    far, off_list = outside.far.address, f"{label}.tunnel.example"
    ways = [(over, kind) for over in ("udp", "tcp") for kind in (A, NULL, TXT, AAAA, HTTPS, ANY)]
    ours = {f"{kind} {over}": _ask(off_list, kind, over=over) for over, kind in ways}
    ours |= {"below a host": _ask(f"{label}.{ALLOWED}")}
    ours |= {"long": _ask(".".join([label + "x" * (60 - len(label))] * 4))}
    odd = {
        "update": _ask(off_list, opcode=5),
        "two at once": _ask(off_list, count=2),
        "chaos": _ask(off_list, TXT, rdclass=3),
    }
    direct = {f"{over} {port}": _ask(off_list, server=far, over=over, port=port) for over, port in
              (("udp", DNS), ("tcp", DNS), ("tcp", DOT), ("udp", DOT))}  # fmt: skip
    direct |= {"DoT of the gateway": _ask(off_list, server=GATEWAY, over="tcp", port=DOT)}
    direct |= {"a name": _to(off_list, TLS)}
    control = {f"own {kind} {over}": _ask(ALLOWED, kind, over=over) for over, kind in ways}
    with tap() as wire:
        told = await _try(attacker, {**ours, **odd, **direct, **control, "own": _to(ALLOWED, TALK)})
        _send(far, after)
        assert wire.saw(label.encode(), after=after) == []
    assert {name: told[name]["code"] for name in ours} == dict.fromkeys(ours, NO_SUCH_NAME)
    assert [told[name]["code"] for name in odd] == [FORMAT_ERROR, FORMAT_ERROR, REFUSED]
    assert sum(told[name]["count"] for name in (*ours, *odd)) == 0
    assert _all_failed({name: told[name] for name in direct})
    # An allowed name has an address of ours and nothing else, and is asked for outside only when it is dialled.
    answers = {(over, kind): told[f"own {kind} {over}"] for over, kind in ways}
    assert {each["code"] for each in answers.values()} == {NO_ERROR}
    assert [way for way, each in answers.items() if each["count"]] == [("udp", A), ("tcp", A)]
    asked = named_daemon.asked(world.data_dir)
    assert ALLOWED in asked
    assert not any(label in name for name in asked)
    assert not outside.has_heard(label.encode())
    assert _say(far, DNS, b"control") == _say(far, DOT, b"control") == b"control"


def _send(to: str, word: bytes, port: int = 9) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(word, (to, port))


async def test_nothing_but_tcp_and_questions_gets_out(attacker: Cell, neighbour: Neighbour, outside: Outside) -> None:
    far = outside.far.address
    quic = [(far, 443), (far, DNS), (far, 123), (GATEWAY, 443), (GATEWAY, 5353), (GATEWAY, PROXY_PORT)]
    near = [(neighbour.address, TALK), ("255.255.255.255", TALK), ("224.0.0.251", TALK), ("169.254.169.254", 80)]
    own = [(each, outside.port) for each in _own_addresses(outside) if each != "127.0.0.1"]
    six = [("2001:db8::1", 443), ("fe80::1%eth0", TALK), ("ff02::1%eth0", TALK), (f"::ffff:{far}", 443)]
    words: dict[str, bytes] = {f"udp {to}": _word() for to in (*quic, *near, *own, *six)}
    pinged = [(to, kind) for to in (far, GATEWAY, neighbour.address) for kind in ("SOCK_RAW", "SOCK_DGRAM")]
    words |= {f"ping {each}": _word() for each in pinged}
    by_tcp = [*six, (f"::ffff:{far}", TALK), ("169.254.169.254", 80), ("169.254.1.1", 80)]
    attempts = {f"udp {to}": _datagram(*to, words[f"udp {to}"]) for to in (*quic, *near, *own, *six)}
    attempts |= {f"ping {(to, kind)}": {"what": "ping", "to": to, "say": words[f"ping {(to, kind)}"].hex(), "kind": kind}
                 for to, kind in pinged}  # fmt: skip
    attempts |= {f"tcp {to}": _to(*to) for to in by_tcp}
    control, after = _word(), _word()
    with tap() as wire:
        told = await _try(attacker, {**attempts, "a question": _ask(ALLOWED)})
        assert told.pop("a question")["code"] == NO_ERROR, "the control: datagrams as such do work"
        assert _all_failed(told), told
        _send(far, control, 443)
        _send(far, after)
        assert wire.saw(*words.values(), control, after=after) == [control]
    await _try(neighbour.cell, {"own": _datagram(neighbour.address, TALK, control)})
    async with asyncio.timeout(PATIENCE_S):
        while control not in (heard := await neighbour.heard()):
            await asyncio.sleep(PAUSE_S)
    assert not any(word in heard for word in words.values())


# --- the host, the router and the neighbour ----------------------------------------------------------------------------


async def test_a_name_that_comes_to_mean_the_inside_is_not_dialled(
    attacker: Cell, neighbour: Neighbour, world: World, outside: Outside
) -> None:
    inside = {
        **dict.fromkeys(_own_addresses(outside), "one of this machine's own addresses"),
        **dict.fromkeys(("127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"), "a loopback address"),
        **dict.fromkeys(("0.0.0.0", "::"), "an unspecified address"),
        **dict.fromkeys(("10.0.0.1", "172.16.0.1", "192.168.1.1", "fd00::1"), "a private address"),
        **dict.fromkeys(("169.254.169.254", "fd00:ec2::254"), "a cloud's metadata service"),
        **dict.fromkeys(("169.254.1.1", "fe80::1"), "a link-local address"),
        **dict.fromkeys((GATEWAY, neighbour.address), "an address of the sandboxes' own network"),
        "198.18.0.1": "an address that only stands for a name",
    }
    names = {f"r{number}.rebind.example": target for number, target in enumerate(inside)}
    attempts = {name: _to(name, outside.port) for name in names}
    world.names({**outside.names, **dict.fromkeys(names, outside.far.address)})
    assert await _try(attacker, attempts) == dict.fromkeys(names, HELLO), "the control: before, they were a host's"
    world.names({**outside.names, **names})
    before = outside.host.accepted[outside.port]
    assert _all_failed(await _try(attacker, attempts))
    denied = {each.name: each.reason for each in await _decisions(attacker) if each.verdict is Verdict.DENIED}
    assert {names[name]: denied.get(name) for name in names} == {to: f"it leads to {why}" for to, why in inside.items()}
    assert outside.host.accepted[outside.port] == before
    world.names(outside.names)


async def test_the_host_and_its_servers_are_out_of_reach_by_every_address(
    runtime: Runtime, world: World, outside: Outside, server: Server
) -> None:
    grpc = int(server.target().endpoint.rpartition(":")[2])
    own = _own_addresses(outside)
    lan = [each for each in own if each != "127.0.0.1"]
    # Even where the list names them.
    listed = [f"{each}/32:{port}" for each in (*lan, outside.far.address) for port in (outside.port, grpc)]
    async with _inside(world.engine, runtime, allowed_hosts=tuple(listed)) as cell:
        before = outside.host.accepted[outside.port]
        told = await _try(cell, {f"{each} {port}": _to(each, port) for each in own for port in (outside.port, grpc)})
        assert _all_failed(told), told
        assert outside.host.accepted[outside.port] == before
        control = {
            "far": _to(outside.far.address, outside.port),
            "own": {"what": "own", "address": "127.0.0.1", "port": grpc},
        }
        assert await _try(cell, control) == {"far": HELLO, "own": "mine"}
    assert [_say(each, outside.port) for each in own] == [b"hello"] * len(own)
    socket.create_connection(("127.0.0.1", grpc), timeout=PATIENCE_S).close()


async def test_neither_the_proxy_nor_a_neighbour_answers(attacker: Cell, neighbour: Neighbour) -> None:
    word = _word()
    ports = (1, 22, WEB, TLS, DOT, TALK, PROXY_PORT, 65535)
    attempts = {f"gateway {port}": _to(GATEWAY, port, word) for port in ports}
    attempts |= {f"loopback {port}": _to("127.0.0.1", port, word) for port in (PROXY_PORT, DNS)}
    attempts |= {f"neighbour {port}": _to(neighbour.address, port, word) for port in (TALK, 22, DNS)}
    assert _all_failed(await _try(attacker, attempts))
    assert await _try(neighbour.cell, {"own": _to(neighbour.address, TALK)}) == {"own": HELLO}
    assert word not in await neighbour.heard()


# --- whose address it is -----------------------------------------------------------------------------------------------


async def test_a_foreign_source_is_refused_inside(attacker: Cell, neighbour: Neighbour) -> None:
    label = _word().decode()
    theirs: dict[str, Any] = {"source": [neighbour.address, 0]}
    question = escapee._question(f"{label}.{THEIRS}", A)
    told = await _try(
        attacker,
        {
            "bound": _to(ALLOWED, TALK, **theirs),
            "bound all the same": _to(ALLOWED, TALK, **theirs, free=True),
            "asked": _datagram(GATEWAY, DNS, question, **theirs),
            "asked all the same": _datagram(GATEWAY, DNS, question, **theirs, free=True),
        },
    )
    assert _all_failed(told), told
    own = await _try(attacker, {"own": {"what": "address"}})
    source: dict[str, Any] = {"source": [own["own"], 0]}
    control = {"bound": _to(ALLOWED, TALK, **source), "free": _to(ALLOWED, TALK, **source, free=True)}
    assert await _try(attacker, control) == dict.fromkeys(control, HELLO)
    await _try(neighbour.cell, {"control": _ask(f"control-{label}.{THEIRS}")})
    await _decided(neighbour.cell, f"control-{label}.{THEIRS}")
    assert f"{label}.{THEIRS}" not in {decision.name for decision in await _decisions(neighbour.cell)}


async def test_a_foreign_source_is_dropped_even_if_the_hosts_root_sends_it(
    attacker: Cell, neighbour: Neighbour, world: World
) -> None:
    label = _word().decode()
    own = (await _try(attacker, {"own": {"what": "address"}}))["own"]
    with _at(world.data_dir, own, neighbour.address) as wire:
        wire.send(ipv4(neighbour.address, GATEWAY, 17, udp(DNS, escapee._question(f"{label}.{THEIRS}", A))))
        wire.send(ipv4(own, GATEWAY, 17, udp(DNS, escapee._question(f"{label}.{OTHER}", A))))
        # The control: the same in its own name is heard, and was sent later.
        await _decided(attacker, f"{label}.{OTHER}")
        assert not any(label in decision.name for decision in await _decisions(neighbour.cell))
        assert _is_answered(wire, wire.slot, within_s=PATIENCE_S)
        assert not _is_answered(wire, wire.neighbour, within_s=SILENCE_S)


@contextlib.contextmanager
def _at(data_dir: Path, own: str, theirs: str) -> Iterator[Wire]:
    """The places of two sandboxes that run."""
    home = Home.of(data_dir)
    sandboxes = {}
    for path in home.members.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # another's that ends just now
            sandboxes[_address_of(data_dir, SandboxId(path.stem))] = SandboxId(path.stem)
    with contextlib.ExitStack() as stack:
        slots = []
        for sandbox in (sandboxes[own], sandboxes[theirs]):
            namespace = netns.open_held(home.namespace(sandbox))
            slots.append(Slot(index=_index_of(data_dir, sandbox), namespace=namespace))
            stack.callback(slots[-1].close)
        hub = netns.open_held(home.router)
        stack.callback(os.close, hub)
        wire = Wire(hub=hub, slot=slots[0], neighbour=slots[1])
        stack.enter_context(wire.stack)
        yield wire


def _index_of(data_dir: Path, sandbox: SandboxId) -> int:
    return int(json.loads((Home.of(data_dir).members / f"{sandbox}.json").read_text())["index"])


def _address_of(data_dir: Path, sandbox: SandboxId) -> str:
    return address(_index_of(data_dir, sandbox))


def _is_answered(wire: Wire, source: Slot, *, within_s: float) -> bool:
    """Whether the beginning of a connection, sent from the attacker's place, is answered at its source's."""
    port, target = secrets.randbelow(10_000) + 20_000, "198.18.0.1"
    listening = wire.open(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800), at=source.namespace)
    head = struct.pack("!HHIIBBHHH", port, TALK, 1, 0, 5 << 4, 2, 65535, 0, 0)
    ends = socket.inet_aton(source.address) + socket.inet_aton(target)
    summed = checksum(ends + struct.pack("!HH", 6, len(head)) + head)
    wire.send(ipv4(source.address, target, 6, head[:16] + struct.pack("!H", summed) + head[18:]))
    listening.settimeout(within_s)
    with contextlib.suppress(TimeoutError):
        while True:
            packet = listening.recv(65536)
            if packet[9] == 6 and packet[12:16] == socket.inet_aton(target) and packet[22:24] == head[:2]:
                return True
    return False


# --- time --------------------------------------------------------------------------------------------------------------


async def test_a_connection_is_worth_nothing_after_the_policy_has_changed(
    runtime: Runtime, world: World, outside: Outside
) -> None:
    hello = client_hello(ALLOWED)
    held = [
        [[SECOND, TALK], b"control".hex(), b"control".hex()],
        [[ALLOWED, TALK], HELLO, HELLO],
        [[ALLOWED, TLS], hello.hex(), HELLO],
        [[ALLOWED, TLS], "", hello.hex()],
        [[ALLOWED, WEB], _get(ALLOWED).hex(), _get(ALLOWED).hex()],
    ]
    removed = [ALLOWED, f"{ALLOWED}:{TALK}"]
    async with _inside(world.engine, runtime, allowed_hosts=outside.allowed) as cell:
        told = await _try_in_two(
            cell,
            {"held": {"what": "hold", "open_first": held}},
            lambda: cell.engine.update_hosts(OWNER, cell.id, remove=removed),
        )
        control, *cut = told["held"]
        assert control["after"] == b"control".hex()
        assert [each["before"] for each in cut] == [HELLO, hello.hex(), "", "200"]
        assert _all_failed({str(number): each["after"] for number, each in enumerate(cut)}), cut
        again = {"address": _to(*cut[0]["peer"]), "name": _to(ALLOWED, TALK)}
        assert _all_failed(await _try(cell, again))
        await cell.engine.update_hosts(OWNER, cell.id, add=removed)
        assert await _try(cell, again) == {"address": HELLO, "name": HELLO}


@dataclass(frozen=True, slots=True)
class Ring:
    """An engine whose network has two addresses only."""

    engine: Engine
    network: EgressClient
    data_dir: Path

    async def come_round(self, to: str) -> None:
        """Make an address that was just given up the next one."""
        last, between = to, SandboxId("between")
        while last == to:
            await self._all_links_gone()
            await self.network.attach(between)
            last = _address_of(self.data_dir, between)
            await self.network.detach(between)
        await self._all_links_gone()

    async def _all_links_gone(self) -> None:
        """The kernel takes its time to remove them, and until then their addresses cannot be used again."""
        async with asyncio.timeout(PATIENCE_S):
            while await asyncio.to_thread(self._has_links):
                await asyncio.sleep(PAUSE_S)

    def _has_links(self) -> bool:
        router = netns.open_held(Home.of(self.data_dir).router)
        try:
            return any(name != "lo" for _, name in netns.inside(router, socket.if_nameindex))
        finally:
            os.close(router)


@pytest.fixture(scope="module")
async def ring(host: Provisioned, lend: Lend, anyio_backend: object) -> AsyncIterator[Ring]:
    data_dir = lend("ring")
    daemon = named_daemon.start(data_dir, addresses=2)
    settings = EngineSettings(data_dir=data_dir / "engine")
    async with (
        EgressClient.open(data_dir) as network,
        Engine.open(settings, over(machine_for(data_dir, host, network))) as engine,
    ):
        yield Ring(engine, network, data_dir)
        await engine.destroy_all()
    await asyncio.to_thread(daemon.wait, PATIENCE_S)


async def test_the_next_session_at_an_address_inherits_nothing(runtime: Runtime, ring: Ring, outside: Outside) -> None:
    named_daemon.tell(ring.data_dir, {"first.example": outside.far.address, "next.example": outside.far.address})
    word, port = _word(), secrets.randbelow(10_000) + 20_000
    async with _inside(ring.engine, runtime, allowed_hosts=(f"first.example:{TALK}",)) as first:
        own = await _try(first, {"own": {"what": "address"}, "name": _ask("first.example")})
        held = [[["first.example", TALK], word.hex(), word.hex(), ["0.0.0.0", port]]]
        stream = await ring.engine.open_exec(OWNER, first.id, _command({"held": {"what": "hold", "open_first": held}}))
        await anext(aiter(stream))
        assert word not in outside.ended
        await ring.engine.destroy_session(OWNER, first.id)
        await stream.close()
    async with asyncio.timeout(PATIENCE_S):
        while word not in outside.ended:
            await asyncio.sleep(PAUSE_S)
    await ring.come_round(own["own"])
    async with _inside(ring.engine, runtime, allowed_hosts=(f"next.example:{TALK}",)) as following:
        assert await _try(following, {"own": {"what": "address"}}) == {"own": own["own"]}, "the premise"
        old = _to(own["name"]["address"], TALK, source=["0.0.0.0", port])
        told = await _try(following, {"old": old, "name": _ask("first.example")})
        assert (told["old"][:6], told["name"]["code"]) == ("failed", NO_SUCH_NAME)
        assert await _try(following, {"own": _to("next.example", TALK)}) == {"own": HELLO}
        assert {each.name for each in await _decisions(following) if each.verdict is not Verdict.DENIED} == {
            "next.example"
        }


# --- too much and too slow ---------------------------------------------------------------------------------------------


async def test_oversized_beginnings_are_cut(attacker: Cell, outside: Outside) -> None:
    word = _word().decode()
    message = b"\1" + (120_000).to_bytes(3, "big") + word.encode() + bytes(120_000 - len(word))
    endless = {
        "hello": _to(ALLOWED, TLS, in_records(b"\x16\3\1\0\0" + message, 16_000)[:80_000]),
        "head": _to(ALLOWED, WEB, _get(ALLOWED, "/", f"X: {word}{'x' * 80_000}")[:80_000]),
        "first line": _to(ALLOWED, WEB, f"GET /{word}{'x' * 80_000}".encode()),
    }
    whole = {
        "header": _web(_get(ALLOWED, "/", f"X: {word}{'x' * 70_000}")),
        "headers": _web(_get(ALLOWED, "/", *(f"X{number}: {word * 8}" for number in range(700)))),
        "target": _web(_get(ALLOWED, f"/{word}{'x' * 70_000}")),
    }
    hello = in_records(client_hello(ALLOWED), 7)
    control = {"head": _web(_get(ALLOWED, "/", f"X: {'x' * 30_000}")), "hello": _to(ALLOWED, TLS, hello)}
    assert await _try(attacker, control) == {"head": ["200"], "hello": hello.hex()}
    assert await _try(attacker, whole) == {name: ["failed"] for name in whole}
    # Reset, and not only given up when nothing more came.
    told = await _try(attacker, endless)
    assert set(told.values()) <= {"failed: ConnectionResetError", "failed: BrokenPipeError"}, told
    assert not outside.has_heard(word.encode())
    assert word not in outside.web[ALLOWED].everything()


async def test_slow_beginnings_are_given_up_while_quick_ones_pass(attacker: Cell) -> None:
    hello, question = client_hello(ALLOWED), escapee._question(ALLOWED, A)
    slow = {
        "hello": ([ALLOWED, TLS], hello, 1),
        "end of a hello": ([ALLOWED, TLS], hello, len(hello) - 1),
        "no hello": ([ALLOWED, TLS], b"", 0),
        "head": ([ALLOWED, WEB], _get(ALLOWED, "/", f"X: {'x' * 500}"), 1),
        "end of a head": ([ALLOWED, WEB], _get(ALLOWED), len(_get(ALLOWED)) - 1),
        "no head": ([ALLOWED, WEB], b"", 0),
        "question": ([GATEWAY, DNS], len(question).to_bytes(2, "big") + question, 5),
    }
    attempts = {
        name: {"what": "dribble", "to": to, "say": data.hex(), "at_once": at_once}
        for name, (to, data, at_once) in slow.items()
    }
    quick = {"quick hello": _to(ALLOWED, TLS, hello), "quick head": _web(_get(ALLOWED))}
    told = await _try(attacker, {**attempts, **quick})
    assert (told.pop("quick hello"), told.pop("quick head")) == (hello.hex(), ["200"])
    assert _all_failed(told), told


async def test_many_connections_meet_their_cap_and_the_neighbour_connects(
    runtime: Runtime, world: World, neighbour: Neighbour, outside: Outside
) -> None:
    async def look() -> None:
        assert await _try(neighbour.cell, {"own": _to(THEIRS, TALK)}) == {"own": HELLO}

    async with _inside(world.engine, runtime, allowed_hosts=outside.allowed, limits=Limits(connections=CAP)) as cell:
        crowd = {"crowd": {"what": "crowd", "to": [ALLOWED, TALK], "size": 10 * CAP}}
        assert await _try_in_two(cell, crowd, look) == {"crowd": {"working": CAP, "again": True}}
