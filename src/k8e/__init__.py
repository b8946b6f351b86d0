"""k8e: isolated places for AI agents to run code."""

__all__ = ["__version__"]

__version__ = "0.1.0"
