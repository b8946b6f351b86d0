"""Secrets: set, list, delete; and the references to them in a request for a session. Values only ever come in."""

from __future__ import annotations

from collections.abc import Iterable

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import fields
from k8e.doors.service.call import Call, whose
from k8e.engine.engine import Engine
from k8e.model import Brokered, SecretRef

__all__ = ["SecretRpcs", "brokered", "brokered_messages", "secret_refs"]

DEFAULT_KEY = "value"
"""What a secret's only value is called when nobody names it."""


class SecretRpcs:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def SetSecret(self, call: Call, request: pb.SetSecretRequest) -> pb.SetSecretResponse:
        name = fields.word(request.name, "name")
        await self._engine.set_secret(call.owner, name, request.key or DEFAULT_KEY, request.value)
        return pb.SetSecretResponse()

    async def ListSecrets(self, call: Call, request: pb.ListSecretsRequest) -> pb.ListSecretsResponse:
        listed = [
            pb.SecretInfo(name=each.name, keys=each.keys, updated_at=int(each.updated_at), owner=each.owner)
            for each in self._engine.list_secrets(whose(call, request, "secrets"))
        ]
        return pb.ListSecretsResponse(secrets=listed)

    async def DeleteSecret(self, call: Call, request: pb.DeleteSecretRequest) -> pb.DeleteSecretResponse:
        name, key = fields.word(request.name, "name"), fields.word(request.key, "key", required=False)
        return pb.DeleteSecretResponse(ok=await self._engine.delete_secret(call.owner, name, key))


def secret_refs(asked: Iterable[pb.SecretRef]) -> tuple[SecretRef, ...]:
    return tuple(
        SecretRef(
            secret_name=fields.word(each.secret_name, "secret_refs.secret_name"),
            key=each.key or DEFAULT_KEY,
            env_var=fields.word(each.env_var, "secret_refs.env_var"),
        )
        for each in asked
    )


def brokered(asked: Iterable[pb.BrokeredSecret]) -> tuple[Brokered, ...]:
    return tuple(
        Brokered(
            secret_name=fields.word(each.secret_name, "brokered_secrets.secret_name"),
            key=each.key or DEFAULT_KEY,
            env_var=fields.word(each.env_var, "brokered_secrets.env_var"),
            host=fields.word(each.host, "brokered_secrets.host"),
            header=each.header.lower() or "authorization",
        )
        for each in asked
    )


def brokered_messages(values: Iterable[Brokered]) -> list[pb.BrokeredSecret]:
    return [
        pb.BrokeredSecret(
            secret_name=each.secret_name, key=each.key, env_var=each.env_var, host=each.host, header=each.header
        )
        for each in values
    ]
