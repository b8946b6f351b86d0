"""The server's own MCP server, as lines of JSON-RPC: for whoever carries them somewhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator

from k8e._proto import sandbox_pb2 as pb
from k8e.client.transport import Transport

__all__ = ["McpCalls"]


class McpCalls(Transport):
    """A connection of its own, made at first use."""

    async def lines(self, client_id: str, said: AsyncIterator[bytes], *, tenant_id: str = "") -> AsyncIterator[bytes]:
        """Carry what a client says; yields what it is told.

        The end of `said` lets calls finish and then ends what the client has made; leaving early cuts the client off,
        and what it has made stays for a while. Raises: SandboxError.
        """

        async def inputs() -> AsyncIterator[pb.McpInput]:
            yield pb.McpInput(start=pb.McpStart(client_id=client_id, tenant_id=tenant_id))
            async for line in said:
                yield pb.McpInput(line=line)

        async for output in self._each(self._stub.ServeMcp(inputs())):
            yield output.line
