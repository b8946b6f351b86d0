"""Calls about secrets. Values go to the server and never come back."""

from __future__ import annotations

from collections.abc import Iterable

from k8e._proto import sandbox_pb2 as pb
from k8e.client.transport import QUICK_S, Transport
from k8e.client.values import BrokeredSecret, SecretInfo, SecretRef

__all__ = ["SecretCalls", "add_references"]


class SecretCalls(Transport):
    async def set_secret(self, name: str, value: str | bytes, key: str = "value") -> None:
        """Keep a value on the server, encrypted, in place of one that was there."""
        raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        request = pb.SetSecretRequest(name=name, key=key, value=raw)
        await self._call(self._stub.SetSecret, request, timeout_s=QUICK_S)

    async def secrets(self, *, all_owners: bool = False) -> list[SecretInfo]:
        """Your secrets by name, or every owner's for administrators; no call returns a value."""
        request = pb.ListSecretsRequest(all_owners=all_owners)
        answer = await self._call(self._stub.ListSecrets, request, timeout_s=QUICK_S)
        return [
            SecretInfo(name=each.name, keys=tuple(each.keys), updated_at=each.updated_at, owner=each.owner)
            for each in answer.secrets
        ]

    async def delete_secret(self, name: str, key: str = "") -> bool:
        """Forget one key, or the whole secret; False when there was nothing."""
        request = pb.DeleteSecretRequest(name=name, key=key)
        return (await self._call(self._stub.DeleteSecret, request, timeout_s=QUICK_S)).ok


def add_references(
    request: pb.CreateSessionRequest, refs: Iterable[SecretRef], brokered: Iterable[BrokeredSecret]
) -> None:
    """Put references into a request for a session."""
    for ref in refs:
        request.secret_refs.add(secret_name=ref.secret_name, key=ref.key, env_var=ref.env_var)
    for each in brokered:
        request.brokered_secrets.add(
            secret_name=each.secret_name, key=each.key, env_var=each.env_var, host=each.host, header=each.header
        )
