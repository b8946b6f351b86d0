"""`python -m k8e.egress --data-dir D`: the daemon's process."""

from __future__ import annotations

import argparse
import os
import resource
from pathlib import Path

from k8e import logs
from k8e.egress import daemon, groups
from k8e.egress.layout import Home
from k8e.egress.serving import plane

__all__: list[str] = []


def _main() -> None:
    parser = argparse.ArgumentParser(prog="k8e.egress", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--ready", type=int, help="a descriptor to write to, and close, when it serves")
    parser.add_argument("--log-level", default="info")
    args = parser.parse_args()
    logs.configure(args.log_level, Home.of(args.data_dir).log)
    groups.leave_servers()
    _allow_many_files()
    daemon.run(args.data_dir, plane(args.data_dir), lambda: _say_ready(args.ready))


def _allow_many_files() -> None:
    """A connection takes several, and the soft limit is meant for programs that still use select(2)."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _say_ready(descriptor: int | None) -> None:
    if descriptor is not None:
        os.write(descriptor, b"y")
        os.close(descriptor)


if __name__ == "__main__":
    _main()
