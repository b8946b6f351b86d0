"""Channels of grpc to one server, and of its stand-in where grpc cannot work: in a child of a process that used it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, cast

import grpc
from grpc import aio

from k8e.client.bridge import BridgeChannel
from k8e.client.discovery import Target
from k8e.client.local import LocalChannel

__all__ = ["grpc_channel", "keep_for_ever", "open_channel"]


class _Grpc:
    """Whether grpc's threads were ever started here, and whether a fork has left us without them."""

    is_started = False
    is_broken = False

    @classmethod
    def start(cls) -> None:
        if cls.is_started:
            return
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=cls.forked)
        # Never given back: with the last channel grpc would stop its thread, and that can crash the process.
        aio.init_grpc_aio()
        cls.is_started = True

    @classmethod
    def forked(cls) -> None:
        cls.is_broken = True


_inherited: list[object] = []


def keep_for_ever(*things: object) -> None:
    """Hold what a forked child must not free: grpc would wait for threads that only its parent has."""
    _inherited.extend(things)


def open_channel(target: Target) -> aio.Channel:
    """A channel whose calls carry the target's identity."""
    metadata = target.metadata()
    if target.socket:
        return cast("aio.Channel", LocalChannel(target.socket, metadata))
    channel = _unidentified(target)
    return cast("aio.Channel", IdentifiedChannel(channel, metadata)) if metadata else channel


def _unidentified(target: Target) -> aio.Channel:
    if _Grpc.is_broken:
        # Its threads did not survive the fork and its locks may be held by them for ever: a fresh process calls for us.
        return cast("aio.Channel", BridgeChannel(target))
    _Grpc.start()
    return grpc_channel(target)


def grpc_channel(target: Target) -> aio.Channel:
    credentials = grpc.ssl_channel_credentials(target.roots, target.key, target.certificate)
    options = [
        *target.channel_options(),
        # A server that was restarted is found again quickly.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return aio.secure_channel(target.endpoint, credentials, options=options)


class IdentifiedChannel:
    """A channel whose every call says who asks."""

    def __init__(self, channel: aio.Channel, metadata: tuple[tuple[str, str], ...]) -> None:
        self._channel = channel
        self._metadata = metadata
        self.unary_unary = self._identified(channel.unary_unary)
        self.unary_stream = self._identified(channel.unary_stream)
        self.stream_unary = self._identified(channel.stream_unary)
        self.stream_stream = self._identified(channel.stream_stream)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def _identified(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            return functools.partial(make(*args, **kwargs), metadata=self._metadata)

        return made
