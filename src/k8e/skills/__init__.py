"""The skill that teaches an agent the sandbox, and how it and the MCP entry get into the agents' own places.

It knows errors and the standard library: the command uses it where only the client is installed, on any platform.
"""

__all__ = ["ENTRY", "SKILL"]

SKILL = "k8e-sandbox-skill"
"""The folder's name, and the name in its front matter: the format wants them to be the same."""
ENTRY = "k8e-sandbox"
"""Under which agents list our MCP server."""
