"""Arguments of a tool, checked against its schema once and then trusted.

A model reads what is wrong with them, so the text names the argument and what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from k8e.client.errors import InvalidRequest
from k8e.mcp.schemas import Schema

__all__ = ["Arguments", "checked"]


@dataclass(frozen=True, slots=True)
class Arguments:
    given: Mapping[str, Any]

    def has(self, name: str) -> bool:
        return name in self.given

    def text(self, name: str, default: str = "") -> str:
        return cast("str", self.given.get(name, default))

    def whole(self, name: str, default: int = 0) -> int:
        return int(self.given.get(name, default))

    def number(self, name: str, default: float) -> float:
        return float(self.given.get(name, default))

    def flag(self, name: str) -> bool:
        return bool(self.given.get(name, False))

    def texts(self, name: str) -> list[str]:
        return list(self.given.get(name, ()))

    def by_name(self, name: str) -> dict[str, str]:
        return dict(self.given.get(name, {}))


def checked(schema: Schema, given: Mapping[str, Any] | None) -> Arguments:
    """Raises: InvalidRequest, naming the argument. What is null is not given: models send that for "none"."""
    known: Mapping[str, Schema] = schema["properties"]
    named = {name: value for name, value in (given or {}).items() if value is not None}
    if unknown := sorted(set(named) - set(known)):
        takes = ", ".join(known) or "no arguments"
        raise InvalidRequest(f"{', '.join(unknown)}: not an argument of this tool, which takes {takes}")
    for name in schema.get("required", ()):
        if name not in named:
            raise InvalidRequest(f"{name}: is required ({known[name]['description']})")
    for name, value in named.items():
        _check(name, value, known[name])
    return Arguments(named)


def _check(name: str, value: Any, schema: Schema) -> None:
    if not _is_of(value, schema):
        raise InvalidRequest(f"{name}: must be {_wanted(schema)} ({schema['description']})")
    least, most = schema.get("minimum"), schema.get("maximum")
    if (least is not None and value < least) or (most is not None and value > most):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise InvalidRequest(f"{name}: must be {bounds}")


def _is_of(value: Any, schema: Schema) -> bool:
    match schema["type"]:
        case "string":
            return isinstance(value, str) and value in schema.get("enum", [value])
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return _is_number(value) and value == int(value)
        case "number":
            return _is_number(value)
        case "array":
            return isinstance(value, list) and all(isinstance(each, str) for each in value)
        case _:
            return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _is_number(value: Any) -> bool:
    # A float of any size is still a number that int() takes: JSON of ours has no infinity.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wanted(schema: Schema) -> str:
    words = {
        "string": "text",
        "boolean": "true or false",
        "integer": "a whole number",
        "number": "a number",
        "array": "a list of texts",
        "object": "an object whose values are texts",
    }
    return f"one of {', '.join(schema['enum'])}" if "enum" in schema else words[schema["type"]]
