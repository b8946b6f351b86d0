"""From a request to what must be started: pure decisions about argv, environment and languages."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional

__all__ = ["IMAGE_ENV", "LANGUAGES", "PRIVATE_FILE", "default_env", "image_env", "language_argv", "missing_language"]

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TOOLS = "/opt/k8e/bin"
"""What set-up brings along: last on PATH, so whatever the image has itself wins."""
_IMAGE_VARIABLE = "K8E_IMAGE_ENV"
IMAGE_ENV: Dict[str, str] = {}
"""What the image sets for every command; filled once, when the agent starts."""
_VENV = "/opt/venv"

PRIVATE_FILE = "\0file"
"""Stands in an argv for the private file that holds the code."""

_MAX_INLINE = 64 * 1024
"""The kernel takes 128 KiB in one argument; longer code goes to a file."""

LANGUAGES: Dict[str, Dict[str, str]] = {
    "python": {"program": "python3", "inline": "-c", "suffix": ".py", "package": "python3"},
    "node": {"program": "node", "inline": "-e", "suffix": ".js", "package": "nodejs"},
    "ts": {"program": "tsx", "inline": "", "suffix": ".ts", "package": "nodejs, then `npm install -g tsx`"},
    "bash": {"program": "bash", "inline": "-c", "suffix": ".sh", "package": "bash"},
}


def image_env(environ: Mapping[str, str]) -> Dict[str, str]:
    """The image's variables, which the agent is told by a variable of its own."""
    return dict(json.loads(environ.get(_IMAGE_VARIABLE, "{}")))


def default_env(has_venv: bool) -> Dict[str, str]:
    """What a command sees unless it says otherwise."""
    env = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", "TERM": "xterm", "USER": "root", "SHELL": "/bin/bash"}
    env.update(IMAGE_ENV)
    env["PATH"] = "%s:%s" % (env["PATH"], _TOOLS)
    if has_venv:
        env["PATH"] = "%s/bin:%s" % (_VENV, env["PATH"])
        env["VIRTUAL_ENV"] = _VENV
    return env


def language_argv(language: str, code: str) -> Optional[List[str]]:
    """One line runs inline, several as a private file, bash always inline; None for an unknown language."""
    known = LANGUAGES.get(language)
    if known is None:
        return None
    is_inline = bool(known["inline"]) and len(code.encode("utf-8", "surrogateescape")) <= _MAX_INLINE
    if is_inline and (language == "bash" or "\n" not in code.strip("\n")) and "\0" not in code:
        return [known["program"], known["inline"], code]
    return [known["program"], PRIVATE_FILE]


def missing_language(language: str, env: Mapping[str, str]) -> str:
    """Why a language cannot be used and how to add it."""
    known = LANGUAGES[language]
    return "%s is not in this image: %s is not on PATH (%s); add it with the package %s" % (
        language,
        known["program"],
        env.get("PATH", ""),
        known["package"],
    )
