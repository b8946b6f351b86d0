"""The host's own tools, when they misbehave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from k8e.egress import links


def test_a_tool_that_hangs_is_an_error_of_that_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "ip"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setattr(links, "_TIMEOUT_S", 0.2)
    with pytest.raises(OSError, match="ip: not done"):
        links.ip_batch("link set lo up\n")
    monkeypatch.setattr(links, "_TIMEOUT_S", 60.0)
    tool.write_text("#!/bin/sh\nexec true\n")
    links.ip_batch("link set lo up\n")
