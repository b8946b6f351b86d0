"""`doctor`: what this machine can do, and how to mend what it cannot."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from k8e.client.discovery import own_data_dir

if TYPE_CHECKING:
    from k8e.cli.groups import Subparsers

__all__ = ["add"]


def add(commands: Subparsers) -> None:
    doctor = commands.add_parser("doctor", help="check every mechanism for real and say how to mend it")
    doctor.add_argument("--json", action="store_true", help="one JSON line instead of text")
    doctor.add_argument("--fix", action="store_true", help="set up what is missing")
    doctor.add_argument("--data-dir", type=Path)
    doctor.set_defaults(local=examine)


def examine(args: argparse.Namespace) -> int:
    from k8e.cli.trial import probes
    from k8e.setup.doctor import as_json, as_text, diagnose
    from k8e.setup.report import Stderr

    data_dir = args.data_dir.absolute() if args.data_dir else own_data_dir(os.environ)
    diagnosis = diagnose(data_dir, fix=args.fix, report=Stderr(), env=os.environ, more=probes(data_dir))
    print(as_json(diagnosis) if args.json else as_text(diagnosis))
    return 0 if diagnosis.ok else 1
