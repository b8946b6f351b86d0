"""A program in the place of a session's Python, for tests of how packages are asked for: pip itself needs a network."""

from __future__ import annotations

import shlex

__all__ = ["PRINTS_ARGUMENTS", "python_that"]


def python_that(script: str) -> str:
    """A command after which the session's `python3` does this instead."""
    return (
        "mkdir -p /opt/venv/bin\n"
        f"printf '#!/bin/sh\\n%s\\n' {shlex.quote(script)} > /opt/venv/bin/python3\n"
        "chmod +x /opt/venv/bin/python3\n"
    )


PRINTS_ARGUMENTS = python_that('printf "%s\\n" "$@"')
"""Each of them on a line."""
