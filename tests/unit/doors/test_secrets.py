"""Secrets through the gRPC door: values go in and never come out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client.channels import open_channel
from tests.support.door import open_door

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[SandboxStub]:
    async with open_door(tmp_path) as door, open_channel(door.target) as channel:
        yield SandboxStub(channel)


async def test_a_secret_is_set_listed_used_and_deleted(stub: SandboxStub) -> None:
    await stub.SetSecret(pb.SetSecretRequest(name="github", key="token", value=b"hush"))
    await stub.SetSecret(pb.SetSecretRequest(name="plain", value=b"quiet"))
    listed = await stub.ListSecrets(pb.ListSecretsRequest())
    assert [(each.name, list(each.keys)) for each in listed.secrets] == [("github", ["token"]), ("plain", ["value"])]
    assert b"hush" not in listed.SerializeToString()
    refs = [
        pb.SecretRef(secret_name="github", key="token", env_var="A"),
        pb.SecretRef(secret_name="plain", env_var="B"),
    ]
    created = await stub.CreateSession(pb.CreateSessionRequest(secret_refs=refs))
    assert list(created.session.secret_env_vars) == ["A", "B"]
    answer = await stub.Exec(pb.ExecRequest(session_id=created.session_id, command='printf "$A $B"'))
    assert answer.stdout == "hush quiet"
    assert (await stub.DeleteSecret(pb.DeleteSecretRequest(name="github"))).ok
    assert not (await stub.DeleteSecret(pb.DeleteSecretRequest(name="github"))).ok


async def test_a_brokered_secret_is_shown_with_its_host_and_the_usual_header(stub: SandboxStub) -> None:
    await stub.SetSecret(pb.SetSecretRequest(name="github", key="token", value=b"hush-hush"))
    asked = pb.BrokeredSecret(secret_name="github", key="token", env_var="GH", host="api.github.com")
    created = await stub.CreateSession(pb.CreateSessionRequest(brokered_secrets=[asked]))
    (shown,) = (await stub.GetSession(pb.GetSessionRequest(session_id=created.session_id))).brokered_secrets
    assert (shown.env_var, shown.host, shown.header) == ("GH", "api.github.com", "authorization")


@pytest.mark.parametrize(
    "request_", [pb.SetSecretRequest(value=b"x"), pb.SetSecretRequest(name="a/b", value=b"x")], ids=["none", "slash"]
)
async def test_a_name_is_needed(stub: SandboxStub, request_: pb.SetSecretRequest) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.SetSecret(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
