"""Programs that run in Python's development mode, for its warnings."""

from __future__ import annotations

__all__ = ["PATIENT"]

PATIENT = "import logging\nlogging.getLogger('asyncio').setLevel(logging.ERROR)\n"
"""How they begin: that mode also warns of every step of a loop that took long, and on a busy machine some do."""
