"""Packages by name: what pip is started with, and what never reaches it."""

from __future__ import annotations

import pytest

from k8e.engine.packages import pip_install
from k8e.errors import InvalidSpec
from k8e.model import Argv


@pytest.mark.parametrize(
    "package",
    [
        "six",
        "six==1.16.0",
        "six>=1.0,<2",
        "six >= 1.0, < 2",
        "requests[socks]",
        "requests[socks,use_chardet_on_py3]==2.*",
        "zope.interface~=5.0",
        "ruamel.yaml!=0.1",
        "a===1.0+local",
    ],
)
def test_a_requirement_is_one_argument_after_the_last_option(package: str) -> None:
    what = pip_install([package]).what
    assert isinstance(what, Argv)
    assert what.argv[:4] == ("python3", "-m", "pip", "install")
    assert what.argv[-2:] == ("--", package)


@pytest.mark.parametrize(
    "package",
    [
        "",
        " six",
        "-r",
        "--index-url=http://evil.example",
        "-e.",
        ".",
        "/tmp/a.whl",
        "./a",
        "a/b",
        "git+https://evil.example/a",
        "https://evil.example/a.whl",
        "a @ https://evil.example/a.whl",
        "a; touch /tmp/b",
        "a && id",
        "$(id)",
        "`id`",
        "a\nb",
        "a\0b",
        "a --global-option=x",
        "a>=1 --index-url=x",
        "a | b",
        "a'b",
        "ä",
        "a" * 513,
    ],
)
def test_anything_else_is_refused(package: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        pip_install(["six", package])
    assert refused.value.field == "packages"


def test_none_and_too_many_are_refused() -> None:
    for packages in ([], ["a"] * 65):
        with pytest.raises(InvalidSpec):
            pip_install(packages)
