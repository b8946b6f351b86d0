"""Signatures as callers see them: without what is already given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["seen"]


@functools.cache
def seen(method: Callable[..., Any]) -> inspect.Signature:
    """A method's signature without its first argument, for whoever asks `help`."""
    whole = getattr(method, "__signature__", None) or inspect.signature(method)
    return whole.replace(parameters=list(whole.parameters.values())[1:])
