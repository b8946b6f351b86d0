"""Fixtures for the substrate alone."""

from __future__ import annotations

from tests.support.bare_sandboxes import boxes, substrate

__all__ = ["boxes", "substrate"]
