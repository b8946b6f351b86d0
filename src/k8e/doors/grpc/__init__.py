"""The gRPC door: `sandbox.v1` over TLS."""

from k8e.doors.grpc.address import Address, Listening, listening
from k8e.doors.grpc.front import FrontSettings
from k8e.doors.grpc.serving import Door, serve

__all__ = ["Address", "Door", "FrontSettings", "Listening", "listening", "serve"]
