"""The real server and its callers: keys, certificates, users of this machine, and nothing of one another's."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import ssl
import stat
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc

from k8e._proto import sandbox_pb2 as pb
from k8e.client.channels import open_channel
from tests.support.requests import key_pem, request_pem
from tests.support.rpcs import Caller, belongings
from tests.support.servers import Server
from tests.support.walks import walk_as_owner, walk_as_stranger

pytestmark = pytest.mark.anyio

RUNTIME = "container"


async def made_key(admin: Caller, name: str, **fields: str) -> str:
    await admin.send("DeleteApiKey", pb.DeleteApiKeyRequest(name=name))
    (made,) = (await admin.send("CreateApiKey", pb.CreateApiKeyRequest(name=name, **fields))).messages  # type: ignore[arg-type]
    return str(made.key)


@pytest.mark.slow
async def test_a_foreign_key_finds_nothing_through_any_rpc_of_the_real_server(server: Server) -> None:
    async with open_channel(server.by_tls()) as channel:
        admin = Caller(channel)
        alice = Caller(channel, await made_key(admin, "alice"))
        mallory = Caller(channel, await made_key(admin, "mallory"))
        judge = Caller(channel, await made_key(admin, "judge", role="approver", owner="key:alice"))
        theirs = await belongings(alice, runtime=RUNTIME)
        await walk_as_stranger(mallory, theirs, runtime=RUNTIME)
        await walk_as_owner(alice, judge, theirs)


async def test_a_certificate_from_login_works_until_its_key_is_deleted(server: Server) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    async with open_channel(server.by_tls()) as channel:
        admin = Caller(channel)
        alice = Caller(channel, await made_key(admin, "alice"))
        (answer,) = (await alice.send("Login", pb.LoginRequest(csr=request_pem(private)))).messages
        target = dataclasses.replace(
            server.by_tls(), roots=answer.ca_cert.encode(), key=key_pem(private), certificate=answer.cert.encode()
        )
        async with open_channel(target) as own:
            (me,) = (await Caller(own).send("WhoAmI", pb.WhoAmIRequest())).messages
            assert (me.identity, me.via, me.role) == ("key:alice", "certificate", "user")
            await admin.send("DeleteApiKey", pb.DeleteApiKeyRequest(name="alice"))
            assert (await Caller(own).send("WhoAmI", pb.WhoAmIRequest())).code == "UNAUTHENTICATED"


async def test_the_server_tells_what_to_pin_and_keeps_its_own_to_itself(server: Server) -> None:
    directory = server.data_dir / "server"
    ca = (directory / "tls" / "sandbox-ca.crt").read_text()
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(ca)).hexdigest()
    async with open_channel(server.by_tls()) as channel:
        admin = Caller(channel)
        await made_key(admin, "somebody")
        (told,) = (await admin.send("ServerStatus", pb.ServerStatusRequest())).messages
    assert told.ca_fingerprint == fingerprint
    assert fingerprint in (server.data_dir / "log").read_text()
    modes = {
        name: stat.S_IMODE((directory / name).stat().st_mode)
        for name in ("apikeys.json", "run", "tls/sandbox-ca.key", "tls/sandbox-server.key", "tls/sandbox-ca.crt")
    }
    assert list(modes.values()) == [0o600, 0o700, 0o600, 0o600, 0o644]
    doors = json.loads((directory / "server.json").read_text())["doors"]
    assert doors["grpc"].startswith("grpcs://127.0.0.1:")


async def test_the_health_of_the_service_is_for_everybody(server: Server) -> None:
    target = server.by_tls()
    credentials = grpc.ssl_channel_credentials(target.roots)
    with grpc.secure_channel(target.endpoint, credentials) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
