"""The server's certificate renews itself while the server runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cryptography import x509

from k8e import trust
from k8e.identity import Office, ServerCertificate, host_names
from k8e.settings import load
from tests.support.door import Clock

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


def names_in(certificate: ServerCertificate) -> set[str]:
    found = x509.load_pem_x509_certificate(certificate.chain)
    return {str(each.value) for each in found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value}


async def test_a_new_name_of_this_machine_is_shown_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(tmp_path, flags={"advertise_hostname": "box.example", "listen": "127.0.0.9:1"}, environ={})
    first = trust.server_certificate(settings)
    assert {"localhost", "127.0.0.1", "::1", "box.example", "127.0.0.9"} <= names_in(first)
    shown: asyncio.Queue[ServerCertificate] = asyncio.Queue()
    known = host_names()
    monkeypatch.setattr(trust, "host_names", lambda: known)
    async with asyncio.TaskGroup() as group:
        renewing = group.create_task(trust.renew(settings, shown.put_nowait, every_s=0.001), name="renew")
        await asyncio.sleep(0)
        known.append("192.0.2.77")
        async with asyncio.timeout(PATIENCE_S):
            assert "192.0.2.77" in names_in(await shown.get())
        assert trust.server_certificate(settings).ca == first.ca
        renewing.cancel()
    assert shown.empty()


async def test_a_disk_that_fails_for_a_while_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(tmp_path, flags={}, environ={})
    trust.server_certificate(settings)
    shown: asyncio.Queue[ServerCertificate] = asyncio.Queue()
    key = tmp_path / "server" / "tls" / "sandbox-ca.key"
    text = key.read_bytes()
    failed = asyncio.Event()
    monkeypatch.setattr(trust.log, "exception", lambda *_: failed.set())
    async with asyncio.TaskGroup() as group:
        renewing = group.create_task(trust.renew(settings, shown.put_nowait, every_s=0.001), name="renew")
        await asyncio.sleep(0)
        key.write_text("nonsense")
        async with asyncio.timeout(PATIENCE_S):
            await failed.wait()
        key.write_bytes(text)
        (tmp_path / "server" / "tls" / "sandbox-server.crt").unlink()
        async with asyncio.timeout(PATIENCE_S):
            assert "localhost" in names_in(await shown.get())
        renewing.cancel()


def test_only_the_machines_own_server_announces_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Office.open(tmp_path / "server", clock=Clock()).authority
    config, former = tmp_path / "etc" / "k8e.yaml", tmp_path / "server" / "tls" / "serving-kube-apiserver.crt"
    monkeypatch.setattr(trust, "SYSTEM_CONFIG", config)
    settings = load(tmp_path, flags={}, environ={})

    def announced(uid: int) -> list[bool]:
        monkeypatch.setattr("os.geteuid", lambda: uid)
        trust.announce_authority(settings, authority, "127.0.0.1:1")
        return [config.exists(), former.exists()]

    assert announced(0) == [False, False]
    monkeypatch.setattr(trust, "SYSTEM_DATA_DIR", tmp_path)
    assert announced(1000) == [False, False]
    assert announced(0) == [True, True]
    assert "certificate-authority-data" in config.read_text()
    assert former.read_bytes().endswith(authority.pem)


def test_a_place_that_cannot_be_written_does_not_keep_the_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Office.open(tmp_path / "server", clock=Clock()).authority
    (tmp_path / "file").touch()
    monkeypatch.setattr(trust, "SYSTEM_CONFIG", tmp_path / "file" / "k8e.yaml")
    monkeypatch.setattr(trust, "SYSTEM_DATA_DIR", tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    trust.announce_authority(load(tmp_path, flags={}, environ={}), authority, "127.0.0.1:1")
    assert (tmp_path / "server" / "tls" / "serving-kube-apiserver.crt").exists()
