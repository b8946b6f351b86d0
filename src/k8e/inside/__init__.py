"""Programs of our own that run inside the server and use it as everybody does: through the SDK and the edge."""

from k8e.inside.channel import InsideChannel, InsideClient
from k8e.inside.mcp import InsideMcp

__all__ = ["InsideChannel", "InsideClient", "InsideMcp"]
