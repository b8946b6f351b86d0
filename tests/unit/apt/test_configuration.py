"""What apt on a host is configured with, asked of the real apt with a configuration of the test's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from k8e.apt import configuration
from k8e.apt.configuration import AptConfiguration
from k8e.errors import HostUnsupported
from k8e.model import HostRule

pytestmark = pytest.mark.skipif(shutil.which("apt-config") is None, reason="this machine has no apt")

_LINE = "deb http://mirror.example/debian stable main\n"


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """A directory in the place of /etc/apt."""
    for name in ("sources.list.d", "trusted.gpg.d", "preferences.d", "apt.conf.d"):
        (tmp_path / "etc" / name).mkdir(parents=True)
    return tmp_path / "etc"


@pytest.fixture
def read(etc: Path, tmp_path: Path) -> Callable[..., AptConfiguration]:
    def read(settings: str = "") -> AptConfiguration:
        conf = tmp_path / "apt.conf"
        conf.write_text(f'Dir::Etc "{etc}/";\n{settings}\n')
        return configuration.read({"APT_CONFIG": str(conf), "PATH": "/usr/bin:/bin"})

    return read


def _rule(name: str, port: int | None = None) -> HostRule:
    return HostRule(name=name, port=port, may_be_private=True)


def test_sources_of_all_files_give_their_hosts(etc: Path, read: Callable[..., AptConfiguration]) -> None:
    (etc / "sources.list").write_text(_LINE)
    (etc / "sources.list.d/one.list").write_text("deb https://user:secret@one.example:8443/x stable main\n")
    (etc / "sources.list.d/two.sources").write_text("Types: deb\nURIs: http://two.example/\nSuites: stable\n")
    (etc / "sources.list.d/three.list.disabled").write_text("deb http://three.example/ stable main\n")
    (etc / "sources.list.d/four.sources").write_text("Enabled: no\nTypes: deb\nURIs: http://four.example/\nSuites: s\n")
    found = read()
    assert found.hosts == (_rule("mirror.example"), _rule("one.example", 8443), _rule("two.example"))
    assert "secret" not in repr(found)


def test_only_hosts_with_names_are_used(etc: Path, read: Callable[..., AptConfiguration]) -> None:
    addresses = (
        "192.0.2.7",
        "10.0.0.0",
        "127.0.0.1:3142",
        "localhost",
        "[2001:db8::1]",
        "0x7f000001",
        "*.corp.example",
        "!mirror.example",
    )
    lines = [f"deb http://{address}/ stable main\n" for address in addresses]
    (etc / "sources.list").write_text("".join(lines) + _LINE)
    found = read()
    assert found.hosts == (_rule("mirror.example"),)
    assert [source.uris for source in found.sources] == [("http://mirror.example/debian",)]


def test_a_proxy_is_a_host_too_and_loses_its_credentials(etc: Path, read: Callable[..., AptConfiguration]) -> None:
    (etc / "sources.list").write_text(_LINE)
    found = read('Acquire::http::Proxy "http://me:secret@proxy.example:3142/";')
    assert found.hosts == (_rule("mirror.example"), _rule("proxy.example", 3142))
    assert found.settings["Acquire::http::Proxy"] == "http://proxy.example:3142"
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    "proxy", ["http://127.0.0.1:3142", "http://localhost:3142/", "DIRECT", "socks5h://p.example", "http://p.example"]
)
def test_a_proxy_that_no_sandbox_could_use_is_left_out(
    etc: Path, read: Callable[..., AptConfiguration], proxy: str
) -> None:
    (etc / "sources.list").write_text(_LINE)
    found = read(f'Acquire::http::Proxy "{proxy}";')
    assert found.hosts == (_rule("mirror.example"),)
    assert "Acquire::http::Proxy" not in found.settings


def test_keys_come_along_where_everybody_may_read_them(etc: Path, read: Callable[..., AptConfiguration]) -> None:
    (etc / "elsewhere").mkdir()
    (etc / "elsewhere/own.gpg").write_bytes(b"own key")
    (etc / "trusted.gpg.d/all.gpg").write_bytes(b"key for all")
    (etc / "trusted.gpg.d/closed.gpg").write_bytes(b"closed")
    (etc / "trusted.gpg.d/closed.gpg").chmod(0o600)
    (etc / "auth.conf").write_text("machine mirror.example login me password secret\n")
    (etc / "preferences.d/pin").write_text("Package: *\n")
    (etc / "sources.list").write_text(
        f"deb [signed-by={etc}/elsewhere/own.gpg] http://mirror.example/ stable main\n"
        "deb [signed-by=/usr/share/keyrings/there.gpg] http://mirror.example/ other main\n"
    )
    found = read()
    places = [source.options["Signed-By"] for source in found.sources]
    assert places[1] == "/usr/share/keyrings/there.gpg"
    assert places[0].startswith("/etc/apt/keyrings/")
    assert found.files[places[0].removeprefix("/etc/apt/")] == b"own key"
    assert found.files["trusted.gpg.d/all.gpg"] == b"key for all"
    assert found.files["preferences.d/pin"] == b"Package: *\n"
    assert not {b"closed"} & set(found.files.values())
    assert "secret" not in repr(found)


def test_of_apt_conf_only_plain_settings_are_kept(etc: Path, read: Callable[..., AptConfiguration]) -> None:
    (etc / "sources.list").write_text(_LINE)
    found = read(
        'APT::Install-Recommends "false"; APT::Default-Release "stable {evil}";\n'
        'DPkg::Post-Invoke { "touch /evil"; }; Acquire::https::SslKey "/etc/ssl/private/key";'
    )
    assert found.settings["APT::Install-Recommends"] == "false"
    assert not any("evil" in value or "Ssl" in name for name, value in found.settings.items())


def test_files_that_are_too_large_are_left_out(etc: Path, read: Callable[..., AptConfiguration]) -> None:
    (etc / "sources.list").write_text(_LINE)
    (etc / "sources.list.d/large.list").write_text("deb http://large.example/ stable main\n" + "#" * (1 << 20))
    (etc / "trusted.gpg.d/large.gpg").write_bytes(bytes((1 << 20) + 1))
    found = read()
    assert found.hosts == (_rule("mirror.example"),)
    assert found.files == {}


def test_hosts_without_end_are_cut(etc: Path, read: Callable[..., AptConfiguration]) -> None:
    (etc / "sources.list").write_text("".join(f"deb http://h{n}.example/ stable main\n" for n in range(200)))
    found = read()
    assert len(found.hosts) == len(found.sources) == 64


@pytest.mark.parametrize("text", ["", "deb file:/srv/packages ./\n", "deb http://127.0.0.1/ stable main\n"])
def test_without_a_source_for_sandboxes_the_operator_is_told(
    etc: Path, read: Callable[..., AptConfiguration], text: str
) -> None:
    (etc / "sources.list").write_text(text)
    with pytest.raises(HostUnsupported, match="start without --allow-apt"):
        read()


def test_without_apt_the_operator_is_told() -> None:
    with pytest.raises(HostUnsupported, match="needs apt on this machine"):
        configuration.read({"PATH": "/nowhere"})
