"""What a host lacks, and what is said about it."""

from __future__ import annotations

import pytest

from k8e.errors import HostUnsupported
from k8e.setup import packages
from k8e.setup.report import Step


def test_a_complete_host_lacks_nothing() -> None:
    assert packages.missing(lambda thing: f"/usr/bin/{thing}") == ()


def test_a_bare_host_lacks_everything_in_order() -> None:
    assert packages.missing(lambda thing: None) == packages.NEEDS


def test_only_what_is_not_found_is_missing() -> None:
    lacking = packages.missing(lambda thing: None if thing in {"nft", "npm"} else thing)
    assert [need.package for need in lacking] == ["nftables", "npm"]


def test_the_advice_names_each_package_its_reason_and_one_command() -> None:
    text = packages.advice(packages.NEEDS)
    assert all(need.package in text and need.reason in text for need in packages.NEEDS)
    assert text.splitlines()[-1].startswith("as root: apt-get install ")


def test_a_package_with_two_of_the_things_is_named_once() -> None:
    lacking = packages.missing(lambda thing: None if thing in {"setpriv", "prlimit"} else thing)
    assert len(lacking) == 2
    assert packages.advice(lacking).splitlines()[-1].endswith("--no-install-recommends util-linux")


def test_without_root_nothing_is_installed_and_everything_is_said(monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(HostUnsupported, match="as root: apt-get install --no-install-recommends runc"):
        packages.install(packages.NEEDS[:1], step, env={})


def test_a_tool_outside_a_plain_users_path_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert packages.find("env") is None
    assert packages.find("chroot") == "/usr/sbin/chroot"
