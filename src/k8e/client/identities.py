"""Calls about who is calling, and, for administrators, about keys."""

from __future__ import annotations

from k8e._proto import sandbox_pb2 as pb
from k8e.client.people import ApiKeyInfo, Identity, NewApiKey
from k8e.client.transport import QUICK_S, Transport

__all__ = ["IdentityCalls"]


class IdentityCalls(Transport):
    async def whoami(self) -> Identity:
        """Who the server takes this client for."""
        answer = await self._call(self._stub.WhoAmI, pb.WhoAmIRequest(), timeout_s=QUICK_S)
        return Identity(owner=answer.owner, identity=answer.identity, role=answer.role, via=answer.via)

    async def create_api_key(
        self, name: str, *, ttl_s: float = 30 * 86400, role: str = "user", owner: str = ""
    ) -> NewApiKey:
        """Make a key; its text is in this answer and nowhere else. A `ttl_s` of 0 means for ever."""
        request = pb.CreateApiKeyRequest(name=name, ttl_s=ttl_s, role=role, owner=owner)
        answer = await self._call(self._stub.CreateApiKey, request, timeout_s=QUICK_S)
        return NewApiKey(info=key_info(answer.info), key=answer.key)

    async def api_keys(self) -> list[ApiKeyInfo]:
        """All keys, without their texts."""
        answer = await self._call(self._stub.ListApiKeys, pb.ListApiKeysRequest(), timeout_s=QUICK_S)
        return [key_info(each) for each in answer.keys]

    async def delete_api_key(self, name: str) -> None:
        """Forget a key and revoke every certificate that was issued for it. Raises: NotFound."""
        await self._call(self._stub.DeleteApiKey, pb.DeleteApiKeyRequest(name=name), timeout_s=QUICK_S)


def key_info(message: pb.ApiKey) -> ApiKeyInfo:
    return ApiKeyInfo(
        name=message.name,
        role=message.role,
        owner=message.owner,
        created_at=message.created_at,
        expires_at=message.expires_at,
        expired=message.expired,
    )
