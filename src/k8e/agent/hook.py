"""The `.pth` file that lets an interpreter of a prebuilt virtual environment park; whoever builds one writes it."""

from __future__ import annotations

__all__ = ["LINE", "NAME", "PATH", "VARIABLE"]

NAME = "zzz_k8e_park.pth"
"""Last in the alphabet: everything else that `site` does for the directory has been done before parking."""

VARIABLE = "K8E_PARK"
PATH = "/.k8e/park.py"
LINE = 'import os; "%s" in os.environ and exec(open("%s", "rb").read())' % (VARIABLE, PATH)
