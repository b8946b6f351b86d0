"""The gRPC door: `sandbox.v1` over TLS."""

from k8e.doors.grpc.serving import Address, serve

__all__ = ["Address", "serve"]
