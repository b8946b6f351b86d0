"""Who the caller is, the keys that administrators give out, and certificates for them."""

from __future__ import annotations

import asyncio
import math

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import fields
from k8e.doors.service.call import Call
from k8e.errors import InvalidSpec, Unauthenticated
from k8e.identity import ApiKey, Office, Role
from k8e.identity.certificates import CLIENT_DAYS

__all__ = ["IdentityRpcs"]

LABEL_BYTES = 256


class IdentityRpcs:
    """Files are written on a thread: a slow disk must not hold up other calls."""

    def __init__(self, office: Office) -> None:
        self._keys = office.keys
        self._certificates = office.certificates

    async def WhoAmI(self, call: Call, request: pb.WhoAmIRequest) -> pb.WhoAmIResponse:
        caller = call.caller
        return pb.WhoAmIResponse(owner=call.owner, identity=caller.identity, role=caller.role, via=caller.via)

    async def Login(self, call: Call, request: pb.LoginRequest) -> pb.LoginResponse:
        device = fields.clean(request.device_name, "device_name", limit=LABEL_BYTES)
        fields.clean(request.client_version, "client_version", limit=LABEL_BYTES)
        key = self._keys.with_id(call.caller.key_id)
        if key is None:
            raise Unauthenticated("Login needs an API key: send it as `authorization: Bearer <key>`")
        issued = await asyncio.to_thread(self._certificates.issue, request.csr, key, device_name=device)
        return pb.LoginResponse(
            cert=issued.decode(), ca_cert=self._certificates.ca_pem.decode(), valid_days=CLIENT_DAYS
        )

    async def CreateApiKey(self, call: Call, request: pb.CreateApiKeyRequest) -> pb.CreateApiKeyResponse:
        key, text = await asyncio.to_thread(
            self._keys.create,
            request.name,
            role=role(request.role),
            owner=fields.word(request.owner, "owner", required=False),
            ttl_s=fields.seconds(request.ttl_s, "ttl_s"),
        )
        return pb.CreateApiKeyResponse(info=self._message(key), key=text)

    async def ListApiKeys(self, call: Call, request: pb.ListApiKeysRequest) -> pb.ListApiKeysResponse:
        return pb.ListApiKeysResponse(keys=[self._message(key) for key in self._keys.listed()])

    async def DeleteApiKey(self, call: Call, request: pb.DeleteApiKeyRequest) -> pb.DeleteApiKeyResponse:
        name = fields.word(request.name, "name")
        # The key's end is already the end of its certificates; the ledger only says so, too.
        deleted = await asyncio.to_thread(self._keys.delete, name)
        await asyncio.to_thread(self._certificates.revoke, deleted)
        return pb.DeleteApiKeyResponse(ok=True)

    def _message(self, key: ApiKey) -> pb.ApiKey:
        return pb.ApiKey(
            name=key.name,
            role=key.role,
            owner=key.owner,
            created_at=int(key.created_at),
            expires_at=math.ceil(key.expires_at),
            expired=self._keys.is_expired(key),
        )


def role(text: str) -> Role:
    try:
        return Role(text or Role.USER)
    except ValueError:
        raise InvalidSpec(f"{text!r} is not one of {', '.join(Role)}", field="role") from None
