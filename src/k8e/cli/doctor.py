"""`doctor`: what this machine can do, and how to mend what it cannot."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from k8e.cli.daemon import client_only
from k8e.cli.output import SERVER, say
from k8e.client.light.places import own_data_dir
from k8e.visible import LINES, terminal_safe

__all__ = ["examine"]


def examine(args: argparse.Namespace) -> int:
    if trouble := client_only():
        say(f"nothing to examine: {trouble}")
        return SERVER
    from k8e.cli.trial import probes
    from k8e.settings import load
    from k8e.setup.doctor import as_json, as_text, diagnose
    from k8e.setup.report import Stderr

    data_dir = Path(args.data_dir).absolute() if args.data_dir else own_data_dir(os.environ)
    settings = load(data_dir, flags={}, environ=os.environ)
    diagnosis = diagnose(
        data_dir,
        fix=args.fix,
        report=Stderr(),
        env=os.environ,
        gvisor_timeout_s=settings.gvisor_timeout,
        gvisor_release=settings.gvisor_release,
        more=probes(data_dir),
    )
    print(terminal_safe(as_json(diagnosis) if args.json else as_text(diagnosis), keep=LINES))
    return 0 if diagnosis.ok else 1
