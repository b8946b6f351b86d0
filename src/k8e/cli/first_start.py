"""The first start from a checkout, which the launcher runs with the system's Python: nothing is installed yet.

What would stop the command later is found before anything is made; then the environment is. Help, and words that make no
command, are answered at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from k8e.cli import daemon, server
from k8e.cli.main import parsed
from k8e.cli.output import INTERRUPTED, SERVER, failed
from k8e.cli.running import is_running
from k8e.client.errors import SandboxError
from k8e.client.light.places import data_dirs, own_data_dir
from k8e.client.light.profiles import connection
from k8e.errors import HostUnsupported, InvalidSpec
from k8e.settings import ServerSettings, load
from k8e.setup.environment import make, space
from k8e.setup.report import Stderr

__all__ = ["main", "settings_of_server"]

NO_PORT = "127.0.0.1:0"


def main(root: str, env: str, python: str, words: Sequence[str]) -> int:
    """Make the environment for these words; the exit code."""
    args = parsed(list(words), "k8e")
    try:
        look_first(args, Path(env))
    except SandboxError as error:
        # Told already; programs that read standard output get it as every command gives it.
        return SERVER if hasattr(args, "local") else failed(error, is_raw=getattr(args, "raw", False))
    report = Stderr()
    try:
        make(Path(env), Path(root), python, report)
    except (HostUnsupported, OSError) as error:
        report.say(str(error))
        return SERVER
    except KeyboardInterrupt:
        report.say("interrupted; run the same command again to go on")
        return INTERRUPTED
    return 0


def look_first(args: argparse.Namespace, env: Path) -> None:
    """Raises: SandboxError, when the server that the command needs could not be prepared or started."""
    try:
        settings = settings_of_server(args, os.environ)
    except (ModuleNotFoundError, InvalidSpec):
        return  # read by libraries that are not there yet, or wrong: the command itself will look, and say so
    if settings is not None:
        daemon.check(settings, os.environ, also=[space(env)])


def settings_of_server(args: argparse.Namespace, environ: Mapping[str, str]) -> ServerSettings | None:
    """Those of the server that the command will start or prepare; None if it has no need of one."""
    match getattr(args, "local", ""):
        case "server:serve":
            return server.chosen_settings(args, server.environment(args))
        case "setup:provision":
            data_dir = Path(args.data_dir).absolute() if args.data_dir else own_data_dir(environ)
            return dataclasses.replace(load(data_dir, flags={}, environ=environ), listen=(NO_PORT,))
        case "":
            return _settings_of_started(args, environ)
    return None


def _settings_of_started(args: argparse.Namespace, environ: Mapping[str, str]) -> ServerSettings | None:
    place = connection(getattr(args, "endpoint", None) or "", getattr(args, "profile", None) or "", environ)
    has_server = place.endpoint or any(map(is_running, data_dirs(environ)))
    if has_server or not getattr(args, "starts_server", True):
        return None
    return load(own_data_dir(environ), flags={}, environ=environ)
