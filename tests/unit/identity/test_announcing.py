"""The CA where users of this machine look for it, and never over somebody's own file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from k8e.client import discovery
from k8e.client.discovery import discover
from k8e.identity.announcing import announce

CA = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def test_clients_find_the_ca_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k8e" / "k8e.yaml"
    assert announce(path, CA, "127.0.0.1:50051")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    monkeypatch.setattr(discovery, "KUBECONFIG", path)
    found = discover("127.0.0.1:50051", {"K8E_DATA_DIR": str(tmp_path), "HOME": str(tmp_path)})
    assert found.roots == CA


def test_our_own_file_is_renewed_and_anothers_is_left(tmp_path: Path) -> None:
    path = tmp_path / "k8e.yaml"
    assert announce(path, b"old", "a:1")
    assert announce(path, b"new", "b:2")
    assert "https://b:2" in path.read_text()
    path.write_text("apiVersion: v1\nkind: Config\n")
    assert not announce(path, CA, "a:1")
    assert path.read_text() == "apiVersion: v1\nkind: Config\n"
