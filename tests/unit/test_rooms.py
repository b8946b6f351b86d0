"""The table of rooms in ARCHITECTURE.md says of every room what it imports, and nothing that it does not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "k8e"
HEAD = "| room | holds | may import |"
ROW = re.compile(r"\| (?P<rooms>`[\w/]+`(?: `[\w/]+`)*) \| (?P<holds>[^|]+) \| (?P<may_import>[^|]+) \|")
NAMED = re.compile(r"`[\w/]+`(?:, `[\w/]+`)*")
ALL, NOTHING = "all", "nothing of ours"


@dataclass(frozen=True, slots=True)
class Row:
    """One or more rooms, and what they may import: rooms, or single modules of one; None is everything."""

    rooms: tuple[str, ...]
    may_import: frozenset[str] | None


def _rows() -> list[Row]:
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    first = lines.index(HEAD) + 2
    return [_row(line) for line in lines[first : lines.index("", first)]]


def _row(line: str) -> Row:
    found = ROW.fullmatch(line)
    assert found, f"not a row of this table: {line}"
    named = found["may_import"].partition(";")[0]
    assert named in (ALL, NOTHING) or NAMED.fullmatch(named), f"neither rooms, {ALL!r} nor {NOTHING!r}: {named}"
    may_import = None if named == ALL else frozenset(_names(named))
    return Row(tuple(_names(found["rooms"])), may_import)


def _names(cell: str) -> list[str]:
    return re.findall(r"`([\w/]+)`", cell)


def _modules() -> dict[str, Path]:
    """By their place in the package: `engine/store`, `engine/store/sqlite`."""
    found = {path.relative_to(PACKAGE).with_suffix(""): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {str(place.parent if place.name == "__init__" else place): path for place, path in found.items()}


MODULES = _modules()
ROWS = _rows()
ROOMS = tuple(room for row in ROWS for room in row.rooms)


def _is_within(place: str, other: str) -> bool:
    return place == other or place.startswith(f"{other}/")


def _room(place: str) -> str:
    """The innermost; empty for what is in none."""
    return max((room for room in ROOMS if _is_within(place, room)), key=len, default="")


def _imported(place: str) -> Iterator[str]:
    """Every module of ours that this one imports at any line, for types alone too; the package itself holds no more than the version."""
    path = MODULES[place]
    package = place if path.name == "__init__.py" else place.rpartition("/")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split("/")[: len(package.split("/")) - node.level + 1]
            base = ["k8e", *above] if node.level else []
            base += node.module.split(".") if node.module else []
            named = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for first, *others in named:
            if first == "k8e" and (module := _module(others)):
                yield module


def _module(parts: list[str]) -> str:
    """What is imported, without the name in it."""
    longest = (("/".join(parts[:length])) for length in range(len(parts), 0, -1))
    return next((place for place in longest if place in MODULES), "")


def _imports(rooms: tuple[str, ...]) -> Mapping[str, set[str]]:
    """What modules of these rooms import of other rooms, and which of them do."""
    found: dict[str, set[str]] = {}
    for place in MODULES:
        if (room := _room(place)) in rooms:
            for module in _imported(place):
                if _room(module) != room:
                    found.setdefault(module, set()).add(place)
    return found


def _names_it(entry: str, module: str) -> bool:
    """A room stands for itself, and not for the rooms within it."""
    return _room(module) == entry if entry in ROOMS else _is_within(module, entry)


def test_every_module_is_in_a_room() -> None:
    assert [place for place in MODULES if not _room(place) and MODULES[place].name != "__init__.py"] == []


def test_what_the_table_names_exists_and_each_room_is_in_it_once() -> None:
    assert len(ROOMS) == len(set(ROOMS))
    named = {name for row in ROWS for name in (*row.rooms, *(row.may_import or ()))}
    assert sorted(name for name in named if name not in MODULES) == []


def test_relative_imports_and_imports_in_functions_are_seen() -> None:
    assert "wire/mux" in set(_imported("wire/aio")), "the control: relative"
    assert "server" in set(_imported("cli/server")), "the control: in a function"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row.rooms))
def test_a_room_imports_what_the_table_says_and_nothing_else(row: Row) -> None:
    if row.may_import is None:
        return
    imports = _imports(row.rooms)
    not_said = {
        module: sorted(importers)
        for module, importers in imports.items()
        if not any(_names_it(entry, module) for entry in row.may_import)
    }
    assert not_said == {}
    not_done = [entry for entry in row.may_import if not any(_names_it(entry, module) for module in imports)]
    assert sorted(not_done) == []
