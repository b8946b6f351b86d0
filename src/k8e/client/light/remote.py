"""Calls through gRPC and TLS, for servers elsewhere: the library's synchronous half, JSON at our side of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from k8e._proto import sandbox_pb2
from k8e.client.discovery import Target
from k8e.client.errors import InvalidRequest, SandboxError, Unreachable
from k8e.client.light.calls import QUICK_S, Answer, Duplex, Request, given, refusal, unreachable

__all__ = ["RemoteCalls"]

SERVICE = sandbox_pb2.DESCRIPTOR.services_by_name["SandboxService"]
QUEUED = 4
"""Requests that wait for a server that is slow to take them."""


class RemoteCalls:
    def __init__(self, target: Target, headers: Mapping[str, str] | None = None) -> None:
        self._target = target
        self._metadata = tuple((headers or {}).items())
        self._channel = _opened(target)

    def unary(self, rpc: str, request: Request, *, timeout_s: float | None = QUICK_S) -> Answer:
        method = SERVICE.methods_by_name[rpc]
        call = self._channel.unary_unary(_path(method), _serialized, GetMessageClass(method.output_type).FromString)
        try:
            return _answer(call(_message(method, request), timeout=timeout_s, metadata=self._metadata))
        except grpc.RpcError as error:
            raise self._refused(error) from error

    def stream(
        self, rpc: str, requests: Sequence[Request] | Iterator[Request], *, timeout_s: float | None = None
    ) -> Iterator[Answer]:
        method = SERVICE.methods_by_name[rpc]
        messages = (_message(method, each) for each in given(requests))
        # What is known beforehand is checked before anything is sent.
        sent = Remembering(iter(list(messages)) if isinstance(requests, Sequence) else messages)
        call = self._begun(method, sent, timeout_s)
        try:
            for message in call:
                yield _answer(message)
        except grpc.RpcError as error:
            raise sent.error or self._refused(error) from error
        finally:
            call.cancel()

    def duplex(self, rpc: str) -> Duplex:
        # What is sent into a call that never begins is lost without a word, so first there is an answer.
        self.unary("WhoAmI", {})
        method, requests = SERVICE.methods_by_name[rpc], Handoff()
        call = self._begun(method, (_message(method, each) for each in requests), None)
        return RemoteDuplex(call, requests, self._refused)

    def close(self) -> None:
        self._channel.close()

    def _begun(self, method: MethodDescriptor, messages: Iterator[Message], timeout_s: float | None) -> Any:
        """Every kind of method as the one that streams both ways: the bytes on the wire are the same."""
        make = self._channel.stream_stream(_path(method), _serialized, GetMessageClass(method.output_type).FromString)
        return make(messages, timeout=timeout_s, metadata=self._metadata)

    def _refused(self, error: object) -> SandboxError:
        if not isinstance(error, grpc.Call):
            return SandboxError(str(error))
        trailing = {key: value for key, value in error.trailing_metadata() or () if isinstance(value, str)}
        made = refusal(error.code().name, error.details() or "", trailing)
        if type(made) is not Unreachable:
            return made
        return unreachable(self._target.described(), str(made), self._target.tried)


class Remembering:
    """Messages, and the error that ended them: gRPC reads them in a thread of its own and does not say it."""

    def __init__(self, messages: Iterator[Message]) -> None:
        self._messages = messages
        self.error: SandboxError | None = None

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return next(self._messages)
        except SandboxError as error:
            self.error = error
            raise


class Handoff:
    """Requests on their way from one thread to gRPC's, few at a time; ends at `finish`, or when nobody wants them."""

    def __init__(self) -> None:
        self._held: deque[Request] = deque()
        self._changed = threading.Condition()
        self._is_finished = False
        self._is_over = False

    def __iter__(self) -> Iterator[Request]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held or self._is_finished or self._is_over)
                if not self._held or self._is_over:
                    return
                request = self._held.popleft()
                self._changed.notify_all()
            yield request

    def put(self, request: Request) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._held) < QUEUED or self._is_over)
            if self._is_over:
                raise Unreachable("the call is over")
            self._held.append(request)
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


class RemoteDuplex:
    def __init__(self, call: Any, requests: Handoff, refused: Callable[[object], SandboxError]) -> None:
        self._call = call
        self._requests = requests
        self._refused = refused
        if not call.add_callback(requests.end):
            requests.end()

    def send(self, request: Request) -> None:
        self._requests.put(request)

    def finish(self) -> None:
        self._requests.finish()

    def answers(self) -> Iterator[Answer]:
        try:
            for message in self._call:
                yield _answer(message)
        except grpc.RpcError as error:
            raise self._refused(error) from error
        finally:
            self.cancel()

    def cancel(self) -> None:
        # In this order: what ended first would look as if everything had been said.
        self._call.cancel()
        self._requests.end()


def _path(method: MethodDescriptor) -> str:
    return f"/{SERVICE.full_name}/{method.name}"


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _message(method: MethodDescriptor, request: Request) -> Message:
    try:
        return json_format.ParseDict(dict(request), GetMessageClass(method.input_type)())
    except (json_format.ParseError, UnicodeError) as error:
        raise InvalidRequest(str(error)) from error


def _answer(message: Message) -> Answer:
    return Answer(json_format.MessageToDict(message, preserving_proto_field_name=True))


def _opened(target: Target) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(target.roots, target.key, target.certificate)
    return grpc.secure_channel(target.endpoint, credentials, options=target.channel_options())
