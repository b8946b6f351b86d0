"""`setup`: make this machine able to run sandboxes, now instead of at first use."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from k8e.cli.output import SERVER, say
from k8e.client.light.places import own_data_dir

__all__ = ["provision"]


def provision(args: argparse.Namespace) -> int:
    from k8e.errors import K8eError
    from k8e.settings import load
    from k8e.setup.provision import ensure
    from k8e.setup.report import Stderr

    data_dir = Path(args.data_dir).absolute() if args.data_dir else own_data_dir(os.environ)
    report = Stderr()
    try:
        settings = load(data_dir, flags={}, environ=os.environ)
        made = ensure(
            data_dir,
            report,
            env=os.environ,
            gvisor_timeout_s=settings.gvisor_timeout,
            gvisor_release=settings.gvisor_release,
            again=True,
        )
    except K8eError as error:
        report.say(str(error))
        return SERVER
    for step, why in made.notes.items():
        report.say(f"{step}: {why}")
    say("set-up is complete")
    return 0
