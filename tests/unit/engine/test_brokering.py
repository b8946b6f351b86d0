"""What may be brokered, and what a session that brokers is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from k8e.engine.brokering import TRUST_AT, Brokering, placeholder, resolved
from k8e.engine.secrets import Secrets
from k8e.engine.settings import EgressSettings
from k8e.errors import InvalidSpec
from k8e.identity.sealing import FileSealer
from k8e.model import Brokered, EgressMode, Grant, HostRule, OwnerId, SandboxId, SessionSpec

pytestmark = pytest.mark.anyio

OWNER = OwnerId("alice")
EACH = Brokered(secret_name="api", key="token", env_var="TOKEN", host="api.example")
SETTINGS = EgressSettings(rules=(HostRule(name="pypi.example"),))


def spec(*brokered: Brokered, hosts: tuple[str, ...] = ("pypi.example",)) -> SessionSpec:
    return SessionSpec(brokered=brokered or (EACH,), allowed_hosts=hosts)


@pytest.fixture
def secrets(tmp_path: Path) -> Iterator[Secrets]:
    store = Secrets(tmp_path / "secrets.sqlite", FileSealer(tmp_path / "key"))
    yield store
    store.close()


@pytest.fixture
def brokering(secrets: Secrets) -> Brokering:
    async def nobody(sandbox: SandboxId, grants: tuple[Grant, ...]) -> str:
        return ""

    return Brokering(secrets, nobody, SETTINGS)


def test_the_host_comes_onto_the_list_unless_it_is_there() -> None:
    assert resolved(spec(), SETTINGS).allowed_hosts == ("pypi.example", "api.example")
    assert resolved(spec(hosts=("*.example",)), SETTINGS).allowed_hosts == ("*.example",)
    assert resolved(spec(hosts=("api.example:22",)), SETTINGS).allowed_hosts == ("api.example:22", "api.example")
    assert resolved(SessionSpec(), SETTINGS) == SessionSpec()


def test_host_and_header_are_brought_into_one_form() -> None:
    (each,) = resolved(spec(replace(EACH, host="API.Example.", header="X-Api-Key")), SETTINGS).brokered
    assert (each.host, each.header) == ("api.example", "x-api-key")


@pytest.mark.parametrize(
    "bad",
    [
        spec(replace(EACH, host="*.example")),
        spec(replace(EACH, host="10.0.0.1")),
        spec(replace(EACH, host="api.example:8443")),
        spec(replace(EACH, header="host")),
        spec(replace(EACH, header="Transfer-Encoding")),
        spec(replace(EACH, header="a b")),
        spec(replace(EACH, header="")),
        spec(EACH, replace(EACH, env_var="OTHER")),
        spec(hosts=("pypi.example", "!api.example")),
        replace(spec(hosts=()), network=EgressMode.NONE),
    ],
    ids=[
        "wildcard", "address", "port", "host header", "framing", "no token", "no header", "same header twice",
        "denied by the list", "no network",
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(bad: SessionSpec) -> None:
    with pytest.raises(InvalidSpec):
        resolved(bad, SETTINGS)
    assert resolved(spec(), SETTINGS).brokered == (EACH,)


@pytest.mark.parametrize(
    "value",
    [b"short", b"with a line's end\n", b"tab\tinside it", b"\xc3\xa4 not ascii", b" begins with space", b"x" * 4097],
)
async def test_a_value_that_no_header_can_carry_is_refused(
    secrets: Secrets, brokering: Brokering, value: bytes
) -> None:
    with pytest.raises(InvalidSpec, match="no secret"):
        brokering.check(OWNER, spec())
    await secrets.set(OWNER, "api", "token", value)
    with pytest.raises(InvalidSpec, match="header"):
        brokering.check(OWNER, spec())
    await secrets.set(OWNER, "api", "token", b"long enough and printable")
    brokering.check(OWNER, spec())


def test_a_placeholder_is_the_sandboxs_own_and_stays_the_same() -> None:
    one, two = SandboxId("sb-1"), SandboxId("sb-2")
    assert placeholder(one, EACH) == placeholder(one, EACH)
    words = {placeholder(one, EACH), placeholder(two, EACH), placeholder(one, replace(EACH, header="x"))}
    assert len(words) == 3
    assert {len(word) for word in words} == {44}


def test_commands_get_the_placeholder_and_whom_to_trust(brokering: Brokering) -> None:
    env = brokering.environment(spec(), SandboxId("sb-1"))
    assert env["TOKEN"] == placeholder(SandboxId("sb-1"), EACH)
    assert env["SSL_CERT_FILE"] == env["NODE_EXTRA_CA_CERTS"] == TRUST_AT
    assert brokering.environment(SessionSpec(), SandboxId("sb-1")) == {}
