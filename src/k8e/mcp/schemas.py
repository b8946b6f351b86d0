"""JSON schemas of arguments and results, in the few words that ours need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Schema", "choice", "flag", "list_of", "number", "object_of", "text", "texts", "texts_by_name", "whole"]

Schema = dict[str, Any]
"""As it travels: JSON Schema is the protocol's own format."""


def text(about: str, **more: Any) -> Schema:
    return {"type": "string", "description": about, **more}


def choice(about: str, *words: str) -> Schema:
    return text(about, enum=list(words))


def whole(about: str, **more: Any) -> Schema:
    return {"type": "integer", "description": about, **more}


def number(about: str, **more: Any) -> Schema:
    return {"type": "number", "description": about, **more}


def flag(about: str) -> Schema:
    return {"type": "boolean", "description": about}


def texts(about: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": about}


def texts_by_name(about: str) -> Schema:
    return {"type": "object", "additionalProperties": {"type": "string"}, "description": about}


def list_of(about: str, **properties: Schema) -> Schema:
    return {"type": "array", "items": object_of(properties, required=()), "description": about}


def object_of(properties: Mapping[str, Schema], *, required: tuple[str, ...]) -> Schema:
    made: Schema = {"type": "object", "properties": dict(properties)}
    return {**made, "required": list(required)} if required else made
