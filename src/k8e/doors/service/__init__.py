"""The service itself, between the doors and the engine: messages ↔ values, for every protocol alike."""

from k8e.doors.service.edge import Edge
from k8e.doors.service.identity import IdentityRpcs
from k8e.doors.service.mcp import McpRpcs
from k8e.doors.service.server import ServerFacts
from k8e.doors.service.service import SERVICE, Service

__all__ = ["SERVICE", "Edge", "IdentityRpcs", "McpRpcs", "ServerFacts", "Service"]
