"""The CA where users of this machine look for it, and never over somebody's own file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from k8e.client import discovery
from k8e.client.discovery import discover
from k8e.identity.announcing import MARK, announce, certificate_text, config_text

CA = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def test_clients_find_the_ca_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k8e" / "k8e.yaml"
    assert announce(path, config_text(CA, "127.0.0.1:50051"))
    monkeypatch.setattr(discovery, "KUBECONFIG", path)
    found = discover("127.0.0.1:50051", {"K8E_DATA_DIR": str(tmp_path), "HOME": str(tmp_path)})
    assert found.roots == CA


def test_everybody_may_read_it_whatever_the_mask_of_the_server(tmp_path: Path) -> None:
    path = tmp_path / "k8e" / "a.crt"
    before = os.umask(0o077)
    try:
        announce(path, certificate_text(CA))
    finally:
        os.umask(before)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o644, 0o755]
    assert path.read_text() == f"{MARK}\n{CA.decode()}"


def test_our_own_file_is_renewed_and_anothers_is_left(tmp_path: Path) -> None:
    path = tmp_path / "k8e.yaml"
    assert announce(path, config_text(b"old", "a:1"))
    assert announce(path, config_text(b"new", "b:2"))
    assert "https://b:2" in path.read_text()
    path.write_text("apiVersion: v1\nkind: Config\n")
    assert not announce(path, config_text(CA, "a:1"))
    assert path.read_text() == "apiVersion: v1\nkind: Config\n"


def test_a_link_is_neither_followed_nor_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text(f"{MARK}\nold\n")  # even where it leads to one of ours
    path = tmp_path / "k8e.yaml"
    path.symlink_to(target)
    assert not announce(path, config_text(CA, "a:1"))
    assert (path.is_symlink(), target.read_text()) == (True, f"{MARK}\nold\n")
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    assert not announce(path, config_text(CA, "a:1"))
    assert not (tmp_path / "nowhere").exists()


def test_what_is_no_file_is_left_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    assert not announce(tmp_path / "pipe", certificate_text(CA))
    assert not announce(tmp_path / "directory", certificate_text(CA))
