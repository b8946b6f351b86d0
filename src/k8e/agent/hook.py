"""What a prebuilt virtual environment gets besides `venv`'s own files; whoever builds one writes it.

A `.pth` file runs at the start of every interpreter of the environment: output line by line (`stdout`), and parking.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

__all__ = ["NAME", "PATH", "VARIABLE", "site_files"]

NAME = "zzz_k8e_park.pth"
"""Last in the alphabet: everything else that `site` does for the directory has been done before parking."""

VARIABLE = "K8E_PARK"
PATH = "/.k8e/park.py"
_MODULE = "_k8e_stdout"
_LINE = (
    'import os, sys, %s; sys.modules.pop("%s"); "%s" in os.environ and exec(open("%s", "rb").read())'
    % (_MODULE, _MODULE, VARIABLE, PATH)
)  # fmt: skip


def site_files() -> Dict[str, str]:
    """Their texts, by their names in the environment's site-packages."""
    with open(os.path.join(os.path.dirname(__file__), "stdout.py"), encoding="utf-8") as file:
        return {NAME: _LINE, _MODULE + ".py": file.read()}
