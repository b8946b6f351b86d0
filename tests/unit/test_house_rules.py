"""The house rules that no linter knows: names, docstrings, `__all__`, the drawn error tree, promises with tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e import errors

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
DRAWERS = re.compile(r"(^|_)(utils?|helpers?|common|misc|managers?)(_|$)")
PROMISE = re.compile(r"`(tests/[\w/.-]+\.py)::(\w+)(?:\[[^`]*\])?`")


def _modules(*roots: Path) -> Iterator[Path]:
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            if not path.stem.endswith(("_pb2", "_pb2_grpc")) and "_proto" not in path.parts:
                yield path


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _names(paths: Iterator[Path] | list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def _is_empty(tree: ast.Module) -> bool:
    """Nothing that could be public: text, the future import, a private function that is called and deleted."""
    return all(
        isinstance(node, ast.Expr | ast.Delete)
        or (isinstance(node, ast.If) and all(isinstance(step, ast.Expr) for step in (*node.body, *node.orelse)))
        or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        or (isinstance(node, ast.FunctionDef) and node.name.startswith("_"))
        for node in tree.body
    )


def _declares_all(tree: ast.Module) -> bool:
    """An assignment, or another module's list taken over as it is."""
    taken = [alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    targets = [
        target
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return "__all__" in taken or any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path in _modules(SOURCE, ROOT / "tests", ROOT / "bench") if not ast.get_docstring(_tree(path))]
    assert _names(silent) == []


def test_every_module_lists_its_public_names() -> None:
    trees = {path: _tree(path) for path in _modules(SOURCE, ROOT / "tests" / "support")}
    open_ended = [path for path, tree in trees.items() if not _is_empty(tree) and not _declares_all(tree)]
    assert _names(open_ended) == []


def test_no_module_is_a_drawer() -> None:
    drawers = [path for path in _modules(SOURCE, ROOT / "tests", ROOT / "bench") if DRAWERS.search(path.stem)]
    assert _names(drawers) == []


def test_no_class_is_a_manager() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{node.name}"
        for path in _modules(SOURCE)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ClassDef) and re.search(r"(Manager|Helper|Utils?)$", node.name)
    ]
    assert named == []


def _drawn() -> set[tuple[str, str]]:
    """(class, parent) pairs as the docstring of errors.py draws them."""
    pairs: set[tuple[str, str]] = set()
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ((?:[│ ]   )*)(├── |└── )?([A-Z]\w+)(?:\s|$)", line)
        if not found or (not found[2] and path):
            continue
        depth = len(found[1]) // 4 + (1 if found[2] else 0)
        path = [*path[:depth], found[3]]
        pairs.add((found[3], path[depth - 1] if depth else "Exception"))
    return pairs


def _real() -> set[tuple[str, str]]:
    classes: list[type[BaseException]] = [getattr(errors, name) for name in errors.__all__]
    return {(known.__name__, known.__mro__[1].__name__) for known in classes}


def test_the_drawn_error_tree_is_the_real_one() -> None:
    assert _drawn() == _real()


def _functions(path: Path) -> set[str]:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(_tree(path)) if isinstance(node, functions)}


@pytest.mark.parametrize("document", ["SPEC.md", "SECURITY.md"])
def test_every_promise_names_a_test_that_exists(document: str) -> None:
    promises = PROMISE.findall((ROOT / document).read_text(encoding="utf-8"))
    assert promises, f"{document} names no test"
    broken = [
        f"{file}::{name}"
        for file, name in promises
        if not (ROOT / file).is_file() or name not in _functions(ROOT / file)
    ]
    assert broken == []
