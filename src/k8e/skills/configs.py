"""An agent's config file as text: what it says about us, and the same text with or without our entry. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from k8e.errors import InvalidSpec
from k8e.skills import edits, tables
from k8e.skills.jsonc import Broken, Value, place

__all__ = ["Config"]

BOM = "\ufeff"
Result = TypeVar("Result")


class Config:
    """The file's bytes, understood. Raises: InvalidSpec with file, line and column where they are not what they should be."""

    def __init__(self, name: str, data: bytes, form: str, path: Sequence[str]) -> None:
        self.name = name
        self.form = form
        self.path = path
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            where = place(data[: error.start].decode("utf-8", "replace"), error.start)
            raise InvalidSpec(f"{name} is not UTF-8 ({where}); it is left as it is") from error
        # A mark at the start is none of the text and stays where it is.
        self.mark = BOM if text.startswith(BOM) else ""
        self.text = text.removeprefix(BOM)

    def found(self) -> Value:
        """The entry that is there; None where there is none."""
        return self._told(self._found)

    def with_entry(self, value: dict[str, Value]) -> bytes:
        return self._bytes(self._told(lambda: self._put(value)))

    def without_entry(self) -> bytes:
        return self._bytes(self._told(self._without))

    def _found(self) -> Value:
        if self.form == "toml":
            return tables.find(self.text, self.path)
        return edits.find(self.text, self.path, is_json5=self.form == "json5")

    def _put(self, value: dict[str, Value]) -> str:
        if self.form == "toml":
            return tables.put(self.text, self.path, value)
        return edits.put(self.text, self.path, value, is_json5=self.form == "json5")

    def _without(self) -> str:
        if self.form == "toml":
            return tables.without(self.text, self.path)
        return edits.without(self.text, self.path, is_json5=self.form == "json5")

    def _told(self, work: Callable[[], Result]) -> Result:
        """Errors with the file's name and the place in it."""
        kind = "TOML" if self.form == "toml" else "JSON"
        try:
            return work()
        except Broken as error:
            where = place(self.text, error.position)
            raise InvalidSpec(f"{self.name}, {where}: {error}; it is left as it is, mend its {kind} first") from error
        except InvalidSpec as error:
            raise InvalidSpec(f"{self.name}: {error}; it is left as it is") from error

    def _bytes(self, text: str) -> bytes:
        try:
            return (self.mark + text).encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidSpec(f"the path of this program is not UTF-8, and {self.name} must be") from error
