"""The result in words: a line as each row comes, a table at the end, and files to keep."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.chart import svg
from bench.rows import Row
from bench.series import Series

__all__ = ["line", "markdown", "write"]

_HEAD = "| measure | ours | beside | ratio or figure | target | met |\n|---|---|---|---|---|---|"


def line(row: Row) -> str:
    """One row for people who watch."""
    beside = f"   {row.beside}: {_series(row.theirs)}" if row.theirs else ""
    return f"{_mark(row):4} {row.name:46} {_series(row.ours):>24} {_figure(row):>14} {_target(row):>10}{beside}"


def markdown(rows: Sequence[Row]) -> str:
    lines = [
        f"| {row.name} | {_series(row.ours)} | {row.beside} {_series(row.theirs)} | {_figure(row)} | {_target(row)} "
        f"| {_mark(row)} |"
        for row in rows
    ]
    judged = [row for row in rows if row.is_met is not None]
    met = sum(bool(row.is_met) for row in judged)
    return "\n".join([_HEAD, *lines, "", f"{met} of {len(judged)} targets met. Times are medians, p95 in brackets."])


def write(directory: Path, rows: Sequence[Row], machine: Mapping[str, str | int], *, date: str, whole: bool) -> Path:
    """Keep the result; only a whole run is the latest one."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"date": date, "machine": dict(machine), "rows": [_record(row) for row in rows]}, indent=2) + "\n"
    kept = directory / f"{date[:10]}-{machine['kernel']}.json" if whole else directory / "partial.json"
    kept.write_text(text, encoding="utf-8")
    picture = svg(rows, f"k8e {machine['k8e']}: share of each target used, {machine['cores']} cores, {date[:10]}")
    if whole:
        (directory / "latest.json").write_text(text, encoding="utf-8")
    (directory / ("latest.svg" if whole else "partial.svg")).write_text(picture, encoding="utf-8")
    return kept


def _record(row: Row) -> dict[str, object]:
    return {
        "name": row.name,
        "ours": dataclasses.asdict(row.ours) if row.ours else None,
        "theirs": dataclasses.asdict(row.theirs) | {"what": row.beside} if row.theirs else None,
        "ratio": round(row.value, 4),
        "unit": row.unit,
        "target": row.bound,
        "target_is": "at least" if row.is_floor else "at most",
        "met": row.is_met,
        "note": row.note,
    }


def _series(series: Series | None) -> str:
    return f"{_number(series.median)} {series.unit} ({_number(series.p95)})" if series else ""


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _figure(row: Row) -> str:
    return f"{_number(row.value)} {row.unit}" if row.bound is not None or row.theirs else ""


def _target(row: Row) -> str:
    return f"{'≥' if row.is_floor else '≤'} {row.bound:.3g}" if row.bound is not None else ""


def _mark(row: Row) -> str:
    return {True: "yes", False: "NO", None: ""}[row.is_met]
