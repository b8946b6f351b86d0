"""The agents' HTTP door: a process of its own before the server, for MCP and A2A; it talks to it through the SDK."""
