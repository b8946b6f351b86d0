"""A request's head → an RPC, or the refusal that the Connect protocol has for it."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import MethodDescriptor

from k8e.doors.connect.errors import Failure
from k8e.doors.connect.routes import Route, find
from k8e.doors.service import SERVICE

EXEC = "/sandbox.v1.SandboxService/Exec"
STREAM = "/sandbox.v1.SandboxService/ExecStream"
HEAD = {"host": "localhost", "content-type": "application/json"}


@pytest.mark.parametrize("method", list(SERVICE.methods), ids=lambda method: str(method.name))
def test_every_rpc_of_the_descriptor_has_its_route_and_its_content_types(method: MethodDescriptor) -> None:
    streams = bool(method.client_streaming or method.server_streaming)
    for suffix in ("json", "proto"):
        unary, streamed = f"application/{suffix}", f"application/connect+{suffix}"
        right, wrong = (streamed, unary) if streams else (unary, streamed)
        path = f"/{SERVICE.full_name}/{method.name}"
        route = find("POST", path, {**HEAD, "content-type": right})
        assert isinstance(route, Route)
        assert (route.name, route.is_streamed, route.content_type) == (method.name, streams, right)
        refused = find("POST", path, {**HEAD, "content-type": wrong})
        assert isinstance(refused, Failure)
        assert (refused.status, right in dict(refused.metadata)["accept-post"]) == (415, True)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "k8e", "127.0.0.1:1", "[::1]"])
def test_hosts_of_this_machine_are_served(host: str) -> None:
    assert isinstance(find("POST", EXEC, {**HEAD, "host": host}), Route)


@pytest.mark.parametrize(
    ("verb", "path", "headers", "status", "code"),
    [
        ("POST", EXEC, {"host": "evil.example"}, 403, "permission_denied"),
        ("POST", EXEC, {"host": "localhost.evil.example"}, 403, "permission_denied"),
        ("POST", EXEC, {"host": "localhost\n"}, 403, "permission_denied"),
        ("POST", EXEC, {"host": ""}, 403, "permission_denied"),
        ("POST", EXEC, {"origin": "http://localhost"}, 403, "permission_denied"),
        ("POST", EXEC, {"origin": ""}, 403, "permission_denied"),
        ("POST", "/", {}, 404, "unimplemented"),
        ("POST", EXEC + "/", {}, 404, "unimplemented"),
        ("POST", EXEC.lower(), {}, 404, "unimplemented"),
        ("POST", "/other.Service/Exec", {}, 404, "unimplemented"),
        ("GET", EXEC, {}, 405, "unimplemented"),
        ("OPTIONS", EXEC, {}, 405, "unimplemented"),
        ("POST", EXEC, {"content-type": ""}, 415, "invalid_argument"),
        ("POST", EXEC, {"content-type": "text/plain"}, 415, "invalid_argument"),
        ("POST", EXEC, {"content-type": "application/grpc"}, 415, "invalid_argument"),
        ("POST", EXEC, {"content-encoding": "gzip"}, 501, "unimplemented"),
        ("POST", EXEC, {"connect-protocol-version": "2"}, 400, "invalid_argument"),
        ("POST", EXEC, {"connect-timeout-ms": "-1"}, 400, "invalid_argument"),
        ("POST", EXEC, {"connect-timeout-ms": "1e3"}, 400, "invalid_argument"),
        ("POST", EXEC, {"connect-timeout-ms": "٣"}, 400, "invalid_argument"),
        ("POST", EXEC, {"connect-timeout-ms": "12345678901"}, 400, "invalid_argument"),
        ("POST", STREAM, {"content-type": "application/connect+json", "connect-content-encoding": "br"}, 501, "unimplemented"),
    ],
)  # fmt: skip
def test_what_is_no_call_is_refused_as_the_protocol_says(
    verb: str, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    refused = find(verb, path, {**HEAD, **headers})
    assert isinstance(refused, Failure)
    assert (refused.status, refused.code) == (status, code)


def test_options_that_change_nothing_are_taken() -> None:
    options = {
        "content-type": "Application/JSON; charset=utf-8",
        "content-encoding": "identity",
        "connect-protocol-version": "1",
        "connect-accept-encoding": "gzip, br",
        "connect-timeout-ms": "1500",
    }
    route = find("POST", EXEC, {**HEAD, **options})
    assert isinstance(route, Route)
    assert route.timeout_s == 1.5
