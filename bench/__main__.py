"""`python -m bench [--quick] [--only NAME] [--n 30]`: measure, say how it goes, keep the result."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import alternatives, machine, report
from bench.agents import mcp
from bench.claims import claims
from bench.commands import commands, programs
from bench.crowd import crowds, idle_memory
from bench.egress import egress
from bench.lab import Lab, Measure
from bench.neighbours import neighbours
from bench.processes import processes
from bench.rows import Row
from bench.server import Deployment
from bench.starts import burst, cold_starts
from bench.streams import throughput
from k8e.model import Runtime
from k8e.setup.provision import ensure
from k8e.setup.report import Stderr

_TOOLS_DIR = Path("/var/lib/k8e")
_RESULTS = Path(__file__).parent / "results"
_QUICK_N = 5

_MEASURES: dict[str, Measure] = {
    "claim": claims,
    "exec": commands,
    "python": programs,
    "command": processes,
    "cold": cold_starts,
    "memory": idle_memory,
    "throughput": throughput,
    "neighbour": neighbours,
    "burst": burst,
    "crowd": crowds,
    "egress": egress,
    "mcp": mcp,
}


def main() -> int:
    args = _arguments()
    # A terminated benchmark clears up like an interrupted one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    names = args.only or list(_MEASURES)
    rows: list[Row] = []
    with _lab(args) as (lab, facts):
        for name in names:
            began = time.monotonic()
            _say(f"{name} …")
            for row in _MEASURES[name](lab):
                rows.append(row)
                _say(report.line(row))
            _say(f"{name} took {time.monotonic() - began:.0f} s")
    whole = not args.only and not args.quick
    kept = report.write(args.results, rows, facts, date=datetime.datetime.now(datetime.UTC).isoformat(), whole=whole)
    print(report.markdown(rows))
    _say(f"kept in {kept}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few of each: shows that it works, not how fast it is")
    parser.add_argument("--only", action="append", choices=list(_MEASURES), help="may be given several times")
    parser.add_argument("--n", type=int, help="how often to measure each (default 30)")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where to keep the result")
    parser.add_argument("--tools-dir", type=Path, default=_TOOLS_DIR, help="whose set-up to use")
    return parser.parse_args()


@contextlib.contextmanager
def _lab(args: argparse.Namespace) -> Iterator[tuple[Lab, dict[str, str | int]]]:
    host = ensure(args.tools_dir, Stderr(), env=os.environ)
    if host.runsc is None or host.runc is None:
        raise SystemExit(f"gVisor and runc are both needed to compare with: {dict(host.notes)}")
    runsc = Path(host.runsc.path)
    bare = {
        Runtime.GVISOR: alternatives.gvisor(runsc, Path(tempfile.mkdtemp(prefix="k8e-bench-runsc-"))),
        Runtime.CONTAINER: alternatives.runc(host.runc, Path(tempfile.mkdtemp(prefix="k8e-bench-runc-"))),
    }
    deployment = Deployment(args.tools_dir)
    lab = Lab(
        deployment=deployment, bare=bare, n=args.n or (_QUICK_N if args.quick else 30), is_quick=args.quick, say=_say
    )
    try:
        yield lab, machine.facts(runsc, host.runc)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for each in bare.values():
            each.clear()
        deployment.remove()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing is left behind")
