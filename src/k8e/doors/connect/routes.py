"""A request's head → the RPC and its encoding, or why not. Pure; generic over the descriptor.

The socket is for programs. A browser always says where a request comes from, and a page that got a name to lead here
says that name; both are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from k8e.doors.connect.codec import JSON, PROTO, Codec
from k8e.doors.connect.errors import Failure
from k8e.doors.service import SERVICE
from k8e.doors.service.fields import MESSAGE_BYTES

__all__ = ["Headers", "Route", "find"]

Headers = Mapping[str, str]
"""By lower-case names."""

HOSTS = re.compile(r"(?:localhost|k8e|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)
TIMEOUT = re.compile(r"[0-9]{1,10}")
UNARY = {"application/json": JSON, "application/proto": PROTO}
STREAMED = {"application/connect+json": JSON, "application/connect+proto": PROTO}
METHODS = {f"/{SERVICE.full_name}/{method.name}": method for method in SERVICE.methods}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    method: MethodDescriptor
    content_type: str
    codec: Codec
    timeout_s: float | None

    @property
    def name(self) -> str:
        return str(self.method.name)

    @property
    def is_streamed(self) -> bool:
        return is_streamed(self.method)

    def decode(self, data: bytes) -> Message:
        """Raises: InvalidSpec."""
        kind: type[Message] = GetMessageClass(self.method.input_type)
        return self.codec.decode(kind, data)


def find(verb: str, path: str, headers: Headers) -> Route | Failure:
    if stranger := refusal_of_browsers(headers):
        return stranger
    method = METHODS.get(path)
    if method is None:
        return Failure("unimplemented", f"no such RPC; try POST /{SERVICE.full_name}/ServerStatus", http=404)
    if verb != "POST":
        return Failure("unimplemented", "use POST", (("allow", "POST"),), http=405)
    codecs = STREAMED if is_streamed(method) else UNARY
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in codecs:
        told = f"{method.name} takes {' or '.join(codecs)}, not {content_type or 'a request without content-type'}"
        return Failure("invalid_argument", told, (("accept-post", ", ".join(codecs)),), http=415)
    return (
        refusal_of_options(headers)
        or refusal_of_length(method, headers)
        or Route(method=method, content_type=content_type, codec=codecs[content_type], timeout_s=timeout_s(headers))
    )


def refusal_of_browsers(headers: Headers) -> Failure | None:
    if "origin" in headers:
        return Failure("permission_denied", "this is no place for web pages: a request with an origin is refused")
    if not HOSTS.fullmatch(headers.get("host", "")):
        return Failure("permission_denied", "the host must be localhost")
    return None


def refusal_of_options(headers: Headers) -> Failure | None:
    """What the protocol has and this door has not, and what cannot be read."""
    encodings = (headers.get(name, "identity") for name in ("content-encoding", "connect-content-encoding"))
    if any(encoding != "identity" for encoding in encodings):
        return Failure("unimplemented", "compressed requests are not served; send them as they are")
    if headers.get("connect-protocol-version", "1") != "1":
        return Failure("invalid_argument", "connect-protocol-version must be 1")
    if not TIMEOUT.fullmatch(headers.get("connect-timeout-ms", "0")):
        return Failure("invalid_argument", "connect-timeout-ms must be up to ten digits")
    return None


def refusal_of_length(method: MethodDescriptor, headers: Headers) -> Failure | None:
    """A message that says beforehand that it is too long need not be sent."""
    length = headers.get("content-length", "0")
    if is_streamed(method) or (length.isdecimal() and int(length) <= MESSAGE_BYTES):
        return None
    return Failure("resource_exhausted", f"a message is at most {MESSAGE_BYTES} bytes; use a stream for more")


def timeout_s(headers: Headers) -> float | None:
    text = headers.get("connect-timeout-ms")
    return None if text is None else int(text) / 1000


def is_streamed(method: MethodDescriptor) -> bool:
    return bool(method.client_streaming or method.server_streaming)
