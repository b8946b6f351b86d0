"""What the operator's own pip and npm use: which hosts, at which address, trusting whom.

Asked of pip and npm themselves, so a company's mirror works in sandboxes without a setting, and no registry's name is
written down here. A sandbox gets addresses without the credentials that may stand in them.
"""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from k8e.errors import InvalidSpec
from k8e.model import HostRule, NetRule
from k8e.policy import entries

__all__ = ["CA_BUNDLE_AT", "Answers", "Registries", "ask", "read", "understand"]

CA_BUNDLE_AT: Final = "/.k8e-ca.crt"
"""Where a sandbox finds the bundle."""

_log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 30.0
_BUNDLE_LIMIT: Final = 4 * 1024 * 1024

_NPM_QUIET: Final = ("--logs-max=0", "--no-update-notifier", "--cache=/dev/null")
"""Asking must leave nothing in the operator's home."""

_ASK_PIP: Final = """
import json
from pip._internal.cli.main import main
from pip._internal.models.index import PyPI
print(json.dumps([PyPI.simple_url, "https://" + PyPI.file_storage_domain]), flush=True)
main(["config", "list"])
"""
_PIP_SETTING: Final = re.compile(r"(?P<section>[\w:-]+)\.(?P<name>[\w-]+)=(?P<value>.*)")
_NPM_SECTION: Final = re.compile(r"; \"(?P<name>[\w-]+)\" config from ")
_NPM_SETTING: Final = re.compile(r"(?P<name>cafile|(?:@[\w.~-]+:)?registry) = (?P<value>\"[^\"]*\")")
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_CA_VARIABLES: Final = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registries:
    """What sandboxes need in order to install packages as the operator would."""

    hosts: tuple[HostRule | NetRule, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Only what differs from what pip and npm do by themselves."""
    ca_bundle: bytes | None = None
    """Every certificate that the operator's tools are told to trust; None where they are told nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What pip and npm said, word by word; empty where one of them is not there."""

    pip: str = ""
    """A line with the built-in index and the host of its files, then what `pip config list` prints."""
    npm: str = ""
    """What `npm config list --long` prints."""


def read(environ: Mapping[str, str]) -> Registries:
    """Ask both, and read the certificates that they name."""
    understood, bundles = understand(ask(environ), environ)
    return Registries(hosts=understood.hosts, env=understood.env, ca_bundle=_certificates(bundles))


def ask(environ: Mapping[str, str]) -> Answers:
    """Run pip and npm side by side; one that fails or hangs counts as absent."""
    questions = {"pip": ("python3", "-c", _ASK_PIP), "npm": ("npm", "config", "list", "--long", *_NPM_QUIET)}
    with ThreadPoolExecutor(max_workers=len(questions)) as threads:
        answers = threads.map(lambda argv: _answer(argv, environ), questions.values())
        return Answers(**dict(zip(questions, answers, strict=True)))


def understand(answers: Answers, environ: Mapping[str, str]) -> tuple[Registries, list[str]]:
    """The hosts and the environment, and where certificates lie."""
    pip, pip_bundle = _of_pip(answers.pip)
    npm, npm_bundle = _of_npm(answers.npm)
    # Each tool is told what the operator told it, and no other: a bundle takes the place of the usual authorities.
    bundles = {"PIP_CERT": pip_bundle, "npm_config_cafile": npm_bundle}
    bundles = _said({**bundles, **{name: environ.get(name, "") for name in _CA_VARIABLES}})
    env = {**pip.env, **npm.env, **dict.fromkeys(bundles, CA_BUNDLE_AT)}
    hosts = tuple(dict.fromkeys((*pip.hosts, *npm.hosts)))
    return Registries(hosts=hosts, env=env), list(dict.fromkeys(bundles.values()))


def _answer(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    try:
        # In the root directory: what lies in ours must not be taken for a project's configuration.
        done = subprocess.run(
            argv, env=dict(environ), cwd="/", capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        _log.info("cannot ask for package registries", extra={"tool": argv[0], "error": str(error)[:200]})
        return ""
    return done.stdout


def _of_pip(answer: str) -> tuple[Registries, str]:
    settings = _pip_settings(answer)
    index = settings.get("index-url", "")
    others = [word for name in ("extra-index-url", "find-links") for word in settings.get(name, "").split()]
    configured = [url for url in (index, *others) if _is_web(url)]
    built_in = [] if _is_web(index) else _json_list(answer.partition("\n")[0])
    env = {
        "PIP_INDEX_URL": _public(index) if _is_web(index) else "",
        "PIP_EXTRA_INDEX_URL": " ".join(
            _public(url) for url in settings.get("extra-index-url", "").split() if _is_web(url)
        ),
        "PIP_TRUSTED_HOST": settings.get("trusted-host", "").replace("\n", " ").strip(),
    }
    hosts = (*_rules(configured, may_be_private=True), *_rules(built_in, may_be_private=False))
    return Registries(hosts=hosts, env=_said(env)), settings.get("cert", "")


def _of_npm(answer: str) -> tuple[Registries, str]:
    built_in, explicit = _npm_settings(answer)
    configured = {name: value for name, value in explicit.items() if name.endswith("registry")}
    unasked = [] if "registry" in explicit else [built_in.get("registry", "")]
    hosts = (
        *_rules(configured.values(), may_be_private=True),
        *_rules(filter(_is_web, unasked), may_be_private=False),
    )
    env = {"npm_config_registry": _public(explicit.get("registry", ""))}
    return Registries(hosts=hosts, env=_said(env)), explicit.get("cafile", "")


def _npm_settings(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """What npm has by itself and what it was told, by whoever it believes most: it names that one last."""
    built_in: dict[str, str] = {}
    explicit: dict[str, str] = {}
    into = built_in
    for line in text.splitlines():
        if section := _NPM_SECTION.match(line):
            into = built_in if section["name"] == "default" else explicit
        # A line that another section outranks is a comment.
        elif setting := _NPM_SETTING.match(line):
            into[setting["name"]] = str(ast.literal_eval(setting["value"]))
    return built_in, explicit


def _pip_settings(text: str) -> dict[str, str]:
    """`pip config list` in the order in which pip itself believes: environment, then `install`, then `global`."""
    found: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        match = _PIP_SETTING.fullmatch(line.strip())
        if match is not None:
            try:
                found[match["section"], match["name"]] = str(ast.literal_eval(match["value"]))
            except (ValueError, SyntaxError):
                continue
    return {
        name: value
        for section in ("global", "install", ":env:")
        for (where, name), value in found.items()
        if where == section
    }


def _json_list(text: str) -> list[str]:
    try:
        read = json.loads(text)
    except ValueError:
        return []
    return [str(entry) for entry in read] if isinstance(read, list) else []


def _is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _rules(urls: Iterable[str], *, may_be_private: bool) -> Iterator[HostRule | NetRule]:
    for url in urls:
        try:
            parts = urlsplit(url)
            rule = entries.parse(f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or "")
        except (InvalidSpec, ValueError) as error:
            # On this machine itself, perhaps: nothing that a sandbox may reach.
            _log.warning("sandboxes cannot use a configured registry", extra={"error": str(error)})
            continue
        yield replace(rule, may_be_private=may_be_private) if isinstance(rule, HostRule) else rule


def _public(url: str) -> str:
    """The address without the credentials in it."""
    parts = urlsplit(url)
    return urlunsplit(
        SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, parts.fragment)
    )


def _said(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if value}


def _certificates(paths: Sequence[str]) -> bytes | None:
    """All certificates of all bundles, each once."""
    found: dict[bytes, None] = {}
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                found |= dict.fromkeys(_CERTIFICATE.findall(file.read(_BUNDLE_LIMIT)))
        except OSError as error:
            _log.warning("cannot read a certificate bundle", extra={"path": path, "error": str(error)})
    return b"\n".join(found) + b"\n" if found else None
