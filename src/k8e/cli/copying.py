"""`cp`: files and trees between here and a session, byte for byte and with their modes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from k8e.cli.fetching import download
from k8e.cli.output import print_json
from k8e.cli.sending import Upload
from k8e.cli.table import size
from k8e.client.errors import InvalidRequest
from k8e.client.light.calls import Calls

__all__ = ["Place", "Tally", "copy", "place"]

WORKSPACE = "/workspace"


class Place(NamedTuple):
    """A path here, or with a session there."""

    session_id: str
    path: str


class Tally:
    """What was copied; on a terminal also how far it is."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0
        self._is_shown = sys.stderr.isatty()

    def add(self, files: int, count: int) -> None:
        self.files += files
        self.bytes += count
        if self._is_shown:
            sys.stderr.write(f"\r\x1b[K{self.files} files, {size(self.bytes)}")

    def close(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")


def copy(args: argparse.Namespace, calls: Calls) -> int:
    source, target = place(args.source), place(args.target)
    if bool(source.session_id) == bool(target.session_id):
        raise InvalidRequest("cp: exactly one side must be SESSION:PATH; put ./ before a local name with a colon")
    tally = Tally()
    try:
        if target.session_id:
            Upload(calls, target.session_id, tally.add).copy(Path(source.path), target.path)
        else:
            download(calls, source.session_id, source.path, Path(target.path), tally.add)
    finally:
        tally.close()
    print_json({"ok": True, "files": tally.files, "bytes": tally.bytes})
    return 0


def place(text: str) -> Place:
    """A colon makes it a session's, unless a slash stands before it or only a drive's letter."""
    session_id, colon, path = text.partition(":")
    if not colon or "/" in session_id or "\\" in session_id or len(session_id) < 2:
        return Place("", text)
    return Place(session_id, path or WORKSPACE)
