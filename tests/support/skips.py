"""A pytest plugin: `--no-skips` makes a skipped test a failed one, so that CI cannot pass by lacking something."""

from __future__ import annotations

from collections.abc import Generator

import pytest

__all__ = ["pytest_addoption", "pytest_runtest_makereport"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a skipped test counts as failed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--no-skips"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skips are failures here: {reason}"
    return report
