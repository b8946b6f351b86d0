"""A pytest plugin: what this host cannot run is skipped with the reason; with `--no-skips` that is a failure, as in CI."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from k8e.model import Runtime
from k8e.setup.provision import notes
from tests.support.places import TOOLS_DIR

__all__ = ["needs_root", "pytest_addoption", "pytest_collection_modifyitems", "pytest_runtest_makereport"]

_TESTS = Path(__file__).resolve().parents[1]
_REAL_SANDBOXES = [_TESTS / name for name in ("clients", "contract", "install", "kernel", "security", "soak")]
"""Folders whose tests make namespaces, mounts and control groups, unless their place is bare."""


def needs_root(why: str) -> pytest.MarkDecorator:
    """For single tests of other folders."""
    return pytest.mark.skipif(os.geteuid() != 0, reason=f"needs root: {why}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a skipped test counts as failed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    is_root = os.geteuid() == 0
    no_gvisor = notes(TOOLS_DIR).get("gvisor", "").partition("\n")[0]
    for item in items:
        if not is_root and any(map(item.path.is_relative_to, _REAL_SANDBOXES)) and _place(item) != "bare":
            item.add_marker(pytest.mark.skip(reason="needs root: it makes real sandboxes"))
        elif is_root and no_gvisor and _starts_gvisor(item):
            item.add_marker(pytest.mark.skip(reason=f"needs gVisor, and set-up could not get it: {no_gvisor}"))


def _starts_gvisor(item: pytest.Item) -> bool:
    """Whatever makes sandboxes on this host takes the default runtime, unless its parameters name another."""
    assert isinstance(item, pytest.Function)
    if place := _place(item):
        return place == Runtime.GVISOR
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "host" in item.fixturenames and Runtime.CONTAINER not in parameters


def _place(item: pytest.Item) -> str:
    """Where a test of the contract suite has its sandboxes."""
    return str(item.callspec.params.get("place", "")) if hasattr(item, "callspec") else ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--no-skips"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skips are failures here: {reason}"
    return report
