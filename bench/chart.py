"""The result as a picture: how much of each target is used up, green up to its line."""

from __future__ import annotations

import html
from collections.abc import Sequence

from bench.rows import Row

__all__ = ["svg"]

_LINE = 24
_LABELS = 300
_PLOT = 480
_FIGURES = 150
_SCALE = 2.0
"""Loads beyond this are cut off; the figure beside the bar says the rest."""
_GOOD, _BAD, _INK, _FAINT = "#2e8b57", "#c0392b", "#24292f", "#d0d7de"


def svg(rows: Sequence[Row], title: str) -> str:
    judged = [row for row in rows if row.load is not None]
    width, height = _LABELS + _PLOT + _FIGURES, _LINE * (len(judged) + 3)
    at_one = _LABELS + _PLOT / _SCALE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(8, _LINE * 0.8, title, weight="bold"),
        f'<line x1="{at_one}" y1="{_LINE * 1.4}" x2="{at_one}" y2="{height - _LINE * 1.2}" stroke="{_INK}"/>',
        _text(at_one, height - _LINE * 0.5, "target", anchor="middle"),
    ]
    for number, row in enumerate(judged):
        parts += _bar(row, _LINE * (number + 1.5))
    return "\n".join([*parts, "</svg>", ""])


def _bar(row: Row, top: float) -> list[str]:
    load = row.load or 0.0
    long = max(2.0, min(load, _SCALE) / _SCALE * _PLOT)
    middle = top + _LINE * 0.65
    sign = "≥" if row.is_floor else "≤"
    return [
        _text(_LABELS - 8, middle, row.name, anchor="end"),
        f'<rect x="{_LABELS}" y="{top + 3}" width="{_PLOT}" height="{_LINE - 6}" fill="{_FAINT}" opacity="0.3"/>',
        f'<rect x="{_LABELS}" y="{top + 3}" width="{long:.1f}" height="{_LINE - 6}" '
        f'fill="{_GOOD if row.is_met else _BAD}"/>',
        _text(_LABELS + _PLOT + 8, middle, f"{row.value:.3g} {row.unit} ({sign} {row.bound:.3g})"),
    ]


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{_INK}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{html.escape(text)}</text>"
    )
