"""JSON texts as people write them, drawn by hypothesis: any layout, comments anywhere, commas where they like."""

from __future__ import annotations

import json

from hypothesis import strategies as st

__all__ = ["GAPS", "objects", "texts"]

GAPS = st.sampled_from(
    ["", "", "", " ", "  ", "\n", "\n  ", "\r\n\t", " /* c */ ", "// x {\n", ' // "k8e-sandbox": [\n  ', "/**/\n"]
)
KEYS = st.sampled_from(["a", "b", "mcpServers", "k8e-sandbox", "other", "", "ключ", 'q"\\', "//"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-99, 99), st.text(max_size=6), st.sampled_from(["}", "// no", "/* no"])
)


@st.composite
def texts(draw: st.DrawFn, value: object) -> str:
    """One of the many texts of a value."""
    if isinstance(value, dict):
        pairs = [f"{draw(_written(key))}{draw(GAPS)}:{draw(GAPS)}{draw(texts(each))}" for key, each in value.items()]
        return draw(_listed("{", pairs, "}"))
    if isinstance(value, list):
        return draw(_listed("[", [draw(texts(each)) for each in value], "]"))
    return draw(_written(value))


@st.composite
def _listed(draw: st.DrawFn, opening: str, items: list[str], closing: str) -> str:
    text = opening + draw(GAPS)
    for number, item in enumerate(items):
        is_last = number == len(items) - 1
        comma = draw(st.booleans()) if is_last else True
        text += item + draw(GAPS) + ("," + draw(GAPS) if comma else "")
    return text + closing


def _written(value: object) -> st.SearchStrategy[str]:
    return st.booleans().map(lambda is_ascii: json.dumps(value, ensure_ascii=is_ascii))


def objects() -> st.SearchStrategy[dict[str, object]]:
    """Objects that may have anything at the places that matter to us, an object at most of them."""
    values = st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
    )
    servers = st.dictionaries(KEYS, values, max_size=3)
    return st.fixed_dictionaries({}, optional={"a": values, "mcpServers": servers, "b": values})
