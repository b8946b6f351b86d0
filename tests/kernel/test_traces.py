"""Traces of a real server, as a real collector receives them."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from k8e.client import SandboxClient
from k8e.setup.provision import Provisioned
from tests.support.eventually import eventually
from tests.support.servers import NO_POOL, Server

_WANTED = {"CreateSession", "claim", "Exec", "agent exec"}


@contextmanager
def _collector() -> Iterator[tuple[str, list[Span]]]:
    received: list[Span] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = ExportTraceServiceRequest.FromString(body)
            received.extend(
                span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
            )
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="collector")
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", received
        server.shutdown()
        thread.join()


def _short(span: Span) -> str:
    return span.name.rpartition("/")[2]


def test_a_call_its_claim_and_its_command_arrive_as_one_trace(data_dir: Path, host: Provisioned) -> None:
    with _collector() as (endpoint, received):
        server = Server(data_dir, *NO_POOL, "--otel-endpoint", endpoint)
        server.start()
        with SandboxClient(target=server.target()) as client:
            sid = client.create_session(runtime_class="container")
            assert client.exec(sid, "exit 3").exit_code == 3
            client.destroy_session(sid)
        # A server that ends gives its last ones only a moment.
        assert eventually(lambda: {_short(span) for span in list(received)} >= _WANTED)
        server.destroy()
    spans = {_short(span): span for span in received}
    for below, above in (("claim", "CreateSession"), ("agent exec", "Exec")):
        assert spans[below].parent_span_id == spans[above].span_id
        assert spans[below].trace_id == spans[above].trace_id
    told = {pair.key: pair.value for pair in spans["Exec"].attributes}
    assert told["k8e.session_id"].string_value == sid
    assert {pair.key: pair.value for pair in spans["agent exec"].attributes}["k8e.exit_code"].int_value == 3
