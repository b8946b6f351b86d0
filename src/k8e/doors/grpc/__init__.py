"""The gRPC door: `sandbox.v1` over TLS."""

from k8e.doors.grpc.serving import Door, ServerFacts, serve

__all__ = ["Door", "ServerFacts", "serve"]
