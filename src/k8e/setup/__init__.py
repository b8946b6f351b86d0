"""What makes a bare host ready: packages, gVisor, Node tools and the agent's bundle.

Imported only by the commands that need it; nothing here is on the path of a running server.
"""

from __future__ import annotations

__all__: list[str] = []
