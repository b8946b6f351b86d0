"""What sandboxes inherit of the operator's pip and npm: hosts, addresses without credentials, certificates."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from k8e.egress import defaults
from k8e.egress.defaults import Answers
from k8e.model import HostRule, NetRule

_BUILT_IN = '["https://index.example/simple", "https://files.example"]\n'
_NPM = '; "default" config from default values\n\nregistry = "https://npm.example/"\n\n'
_CERTIFICATE = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n"


def _hosts(answers: Answers) -> set[HostRule | NetRule]:
    return set(defaults.understand(answers, {})[0].hosts)


def test_without_configuration_the_built_in_hosts_are_used_and_must_be_public() -> None:
    understood, bundles = defaults.understand(Answers(pip=_BUILT_IN, npm=_NPM), {})
    names = ["index.example", "files.example", "npm.example"]
    assert understood.hosts == tuple(HostRule(name=name) for name in names)
    assert understood.env == {}
    assert bundles == []


def test_a_configured_index_takes_the_place_of_the_built_in_one_and_may_be_private() -> None:
    config = "global.index-url='https://mirror.example/simple'\nglobal.timeout='9'\n"
    assert _hosts(Answers(pip=_BUILT_IN + config)) == {HostRule(name="mirror.example", may_be_private=True)}


def test_a_further_index_stands_beside_the_built_in_one() -> None:
    config = "install.extra-index-url='\\nhttp://one.example:8080/simple\\nhttps://10.0.0.5/simple'\n"
    understood, _ = defaults.understand(Answers(pip=_BUILT_IN + config), {})
    assert set(understood.hosts) == {
        HostRule(name="index.example"),
        HostRule(name="files.example"),
        HostRule(name="one.example", port=8080, may_be_private=True),
        NetRule(network="10.0.0.5/32"),
    }
    assert understood.env == {"PIP_EXTRA_INDEX_URL": "http://one.example:8080/simple https://10.0.0.5/simple"}


def test_the_environment_outranks_the_files() -> None:
    config = "global.index-url='https://low.example/'\n:env:.index-url='https://high.example/'\n"
    assert _hosts(Answers(pip="\n" + config)) == {HostRule(name="high.example", may_be_private=True)}


def test_directories_and_this_machines_own_servers_are_no_hosts() -> None:
    config = ":env:.find-links='/opt/wheels'\n:env:.extra-index-url='http://localhost:3141/ http://127.0.0.1/'\n"
    assert _hosts(Answers(pip="\n" + config)) == set()


def test_scoped_registries_count_too() -> None:
    outranked = _NPM.replace(
        'registry = "https://npm.example/"', '; registry = "https://npm.example/" ; overridden by user'
    )
    told = '; "user" config from /x\n\n@corp:registry = "https://corp.example/npm/"\nregistry = "https://mirror.example/"\n'
    found = _hosts(Answers(npm=outranked + told))
    assert found == {HostRule(name=name, may_be_private=True) for name in ("corp.example", "mirror.example")}


@pytest.mark.parametrize("garbage", ["", "not json", "[]", "null", "7", "registry = nothing"])
def test_nonsense_is_no_answer(garbage: str) -> None:
    assert _hosts(Answers(pip=garbage, npm=garbage)) == set()


def test_real_pip_and_npm_say_where_they_go_and_credentials_stay_outside(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    bundle, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    bundle.write_text(_CERTIFICATE.format("one"))
    other.write_text(_CERTIFICATE.format("one") + _CERTIFICATE.format("two"))
    found = defaults.read(
        {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": "https://me:hidden@pip.example:8443/simple",
            "PIP_CERT": str(bundle),
            "npm_config_registry": "https://you:hidden@npm.example/path/",
            "npm_config_cafile": str(other),
        }
    )
    assert found.hosts == (
        HostRule(name="pip.example", port=8443, may_be_private=True),
        HostRule(name="npm.example", may_be_private=True),
    )
    assert found.env == {
        "PIP_INDEX_URL": "https://pip.example:8443/simple",
        "npm_config_registry": "https://npm.example/path/",
        "PIP_CERT": defaults.CA_BUNDLE_AT,
        "npm_config_cafile": defaults.CA_BUNDLE_AT,
    }
    assert found.ca_bundle == (_CERTIFICATE.format("one") + _CERTIFICATE.format("two")).encode()
    assert "hidden" not in repr(found)


def test_only_tools_that_were_told_whom_to_trust_are_told_so_inside() -> None:
    understood, bundles = defaults.understand(Answers(), {"GIT_SSL_CAINFO": "/ca.pem", "SSL_CERT_FILE": ""})
    assert understood.env == {"GIT_SSL_CAINFO": defaults.CA_BUNDLE_AT}
    assert bundles == ["/ca.pem"]


def test_without_pip_and_npm_nothing_is_known(tmp_path: Path) -> None:
    assert defaults.read({"PATH": str(tmp_path)}) == defaults.Registries()
