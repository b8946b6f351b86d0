"""What tools expect of any gRPC server: health, for whoever asks, and the schema, for callers that are known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from k8e.doors.grpc.handlers import presented, refuse
from k8e.doors.grpc.lobby import Lobby
from k8e.doors.service import SERVICE
from k8e.doors.service.edge import Edge
from k8e.errors import K8eError

__all__ = ["Health", "add_tooling"]

NAMES = (SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)


class Health:
    """Whether the service takes calls, as load balancers ask."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()

    async def serving(self) -> None:
        for name in (health.OVERALL_HEALTH, SERVICE.full_name):
            await self.servicer.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stopping(self) -> None:
        await self.servicer.enter_graceful_shutdown()


class Schema:
    """The schema, for callers whom the edge admits."""

    def __init__(self, edge: Edge, lobby: Lobby) -> None:
        # Its stubs take an asynchronous generator for something else.
        self._told: Any = ReflectionServicer(service_names=NAMES, pool=schemas())
        self._edge = edge
        self._lobby = lobby

    async def ServerReflectionInfo(
        self, request_iterator: AsyncIterator[reflection_pb2.ServerReflectionRequest], context: Any
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        try:
            self._edge.admit("ServerReflectionInfo", presented(context, self._lobby))
        except K8eError as error:
            await refuse(context, error)
        async for answer in self._told.ServerReflectionInfo(request_iterator, context):
            yield answer


def schemas() -> DescriptorPool:
    """What can be asked about: our messages are in no pool that others share."""
    pool = DescriptorPool()
    for file in (SERVICE.file, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        pool.AddSerializedFile(file.serialized_pb)
    return pool


def add_tooling(server: aio.Server, edge: Edge, lobby: Lobby) -> Health:
    """Health and schema on a server that is about to start."""
    told = Health()
    health_pb2_grpc.add_HealthServicer_to_server(told.servicer, server)
    add_schema: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    add_schema(Schema(edge, lobby), server)
    return told
