"""What a brokered request and its response become on their way: placeholders out, values in, and back. No I/O."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import h11

from k8e.egress.content_encoding import Decoder, decoder
from k8e.egress.http import Refused, Terms, basic_credentials, judge
from k8e.egress.scrub import Masked, Scrubber
from k8e.egress.watch import Watch
from k8e.model import Grant

__all__ = ["Answer", "Swap"]

_PORT = 443
_READABLE = {b"gzip", b"x-gzip", b"br", b"identity"}
_Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A response as the sandbox may see it, and how its body must be treated."""

    head: h11.Response
    decoder: Decoder | None


@dataclass(frozen=True, slots=True)
class Swap:
    """The rules of one connection to one host."""

    name: str
    grants: tuple[Grant, ...]
    secrets: tuple[Masked, ...]
    """The values of the grants, as they are found in what comes back."""

    def request(self, request: h11.Request) -> h11.Request:
        """The request with values in it. Raises: Refused, also for a placeholder where it is not for."""
        headers = [self._swapped(name, value) for name, value in request.headers.raw_items()]
        swapped = h11.Request(
            method=request.method, target=request.target, headers=headers, http_version=request.http_version
        )
        terms = Terms(name=self.name, port=_PORT, unspeakable=tuple(each.placeholder.encode() for each in self.grants))
        judged = judge(swapped, terms)
        # h11 would say 1.1 of any request that it writes, so a body's framing is always one that 1.1 knows.
        return h11.Request(
            method=judged.method, target=judged.target, headers=_that_we_can_follow(list(judged.headers.raw_items()))
        )

    def elsewhere(self) -> Watch:
        """Looks in a request's body for placeholders that are for other hosts."""
        return Watch(each.placeholder.encode() for each in self.grants if each.host != self.name)

    def trailers(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Raises: Refused when a trailer holds a placeholder."""
        words = [each.placeholder.encode() for each in self.grants]
        if any(word in value for word in words for _, value in headers):
            raise Refused("a secret's placeholder in a trailer", self.name)

    def scrubber(self) -> Scrubber:
        """For everything that comes back."""
        return Scrubber(self.secrets)

    def response(self, response: h11.Response, *, has_body: bool) -> Answer:
        """Raises: UnknownEncoding when its body cannot be looked into."""
        headers = self.scrubbed(response.headers.raw_items())
        undo = None
        if has_body:
            undo = decoder(
                each
                for name, value in headers
                if name.lower() == b"content-encoding"
                for each in value.decode("latin-1").split(",")
            )
        gone = {b"alt-svc"} | ({b"content-encoding", b"content-length"} if undo else set())
        kept = [(name, value) for name, value in headers if name.lower() not in gone]
        head = h11.Response(
            status_code=response.status_code, headers=kept, reason=self.scrubber().whole(bytes(response.reason))
        )
        return Answer(head, undo)

    def information(self, event: h11.InformationalResponse) -> h11.InformationalResponse:
        """A response before the response."""
        return h11.InformationalResponse(
            status_code=event.status_code,
            headers=self.scrubbed(event.headers.raw_items()),
            reason=self.scrubber().whole(bytes(event.reason)),
        )

    def scrubbed(self, headers: Sequence[tuple[bytes, bytes]]) -> _Headers:
        scrubber = self.scrubber()
        return [(scrubber.whole(name), scrubber.whole(value)) for name, value in headers]

    def _swapped(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        for grant in self.grants:
            if grant.host == self.name and name.lower() == grant.header.encode():
                filled = _filled(value, grant)
                if filled != value and not _has_value(grant):
                    raise Refused("the secret behind this placeholder is gone, or not here yet", self.name)
                value = filled
        return name, value


def _has_value(grant: Grant) -> bool:
    return grant.value != ""


def _filled(value: bytes, grant: Grant) -> bytes:
    word, secret = grant.placeholder.encode(), grant.value.encode()
    if (plain := basic_credentials(value)) is not None and word in plain:
        return b"Basic " + base64.b64encode(plain.replace(word, secret))
    return value.replace(word, secret)


def _that_we_can_follow(headers: _Headers) -> _Headers:
    """Ask only for what can be scrubbed: no part of a compressed body, no unknown or per-message compression."""
    has_range = any(name.lower() == b"range" for name, _ in headers)
    kept = []
    for name, value in headers:
        if name.lower() == b"accept-encoding":
            readable = b"identity" if has_range else _readable(value)
            kept.append((name, readable))
        elif name.lower() != b"sec-websocket-extensions":
            kept.append((name, value))
    return kept


def _readable(value: bytes) -> bytes:
    offers = [each.strip() for each in value.split(b",")]
    return b", ".join(each for each in offers if each.split(b";")[0].strip().lower() in _READABLE) or b"identity"
