"""k8e: isolated places for AI agents to run code."""

__version__ = "0.1.0"
