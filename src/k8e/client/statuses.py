"""The error that grpc raises, for channels that only stand in for it."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from grpc import aio

__all__ = ["status"]


def status(code: str, text: str, beside: Iterable[tuple[str, str]] = ()) -> aio.AioRpcError:
    """By grpc's name of a code or by Connect's; one that neither has is UNKNOWN."""
    name = "CANCELLED" if code == "canceled" else code.upper()
    known = grpc.StatusCode[name] if name in grpc.StatusCode.__members__ else grpc.StatusCode.UNKNOWN
    return aio.AioRpcError(known, aio.Metadata(), aio.Metadata(*beside), details=text)
