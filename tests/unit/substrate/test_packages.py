"""What of a host's package state a sandbox has."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8e.apt.configuration import AptConfiguration
from k8e.apt.sources import Source
from k8e.substrate.local.images import packages


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Some files of a host, among them some that are nobody else's business."""
    host = tmp_path / "host"
    for name, text in {
        "var/lib/dpkg/status": "Package: one\n",
        "var/lib/dpkg/info/one.list": "/usr/bin/one\n",
        "var/lib/dpkg/statoverride": "root operators 4750 /usr/bin/one\n",
        "var/cache/debconf/config.dat": "secret\n",
        "etc/apt/auth.conf": "machine mirror.example password secret\n",
        "etc/debconf.conf": "BindPasswd: secret\n",
        "etc/adduser.conf": "# as it comes\n",
        "etc/login.defs": "secret\n",
        "etc/passwd": "operator:x:1001:1001:secret:/home/operator:/bin/bash\n",
        "usr/share/base-passwd/passwd.master": "root:*:0:0:root:/root:/bin/bash\nman:*:6:12:man:/var/cache/man:/bin/sh\n",
    }.items():
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        (host / name).write_text(text)
    (host / "etc/login.defs").chmod(0o600)
    return host


def _texts(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_a_sandbox_has_the_packages_of_the_host_and_none_of_its_secrets(host: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()
    source = Source(types=("deb",), uris=("http://mirror.example/",), suites=("./",))
    given = AptConfiguration(
        sources=(source,), settings={"APT::Install-Recommends": "false"}, files={"trusted.gpg.d/a.gpg": b"key"}
    )
    packages.fill_root(layer, given, host)
    texts = _texts(layer)
    assert "secret" in "".join(_texts(host).values()), "the control"
    assert "secret" not in "".join(texts.values())
    assert texts["var/lib/dpkg/status"] == "Package: one\n"
    assert texts["var/lib/dpkg/info/one.list"] == "/usr/bin/one\n"
    assert texts["var/lib/dpkg/statoverride"] == "", "it names accounts that a sandbox does not have"
    assert texts["etc/adduser.conf"] == "# as it comes\n"
    assert texts["etc/apt/trusted.gpg.d/a.gpg"] == "key"
    assert 'APT::Install-Recommends "false";\n' in texts["etc/apt/apt.conf.d/k8e"]
    assert "URIs: http://mirror.example/\n" in texts["etc/apt/sources.list.d/k8e.sources"]
    assert "man:x:6:12:" in texts["etc/passwd"]
    assert texts["etc/passwd"].count("root:x:0:0:") == 1
