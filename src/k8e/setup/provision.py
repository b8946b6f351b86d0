"""Set-up as a list of steps that each look first: run it as often as you like, whenever it was cut short.

Packages that every sandbox needs must be there; gVisor and Node may fail, and then the reason is kept, shown, and
not tried again at every start (`k8e doctor --fix` tries again). Two set-ups at once wait for each other.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from k8e.errors import HostUnsupported
from k8e.locks import private
from k8e.setup import gvisor, node, packages
from k8e.setup.bundle import Bundle, build
from k8e.setup.gvisor import Runsc
from k8e.setup.packages import Need, find
from k8e.setup.report import Reporter

__all__ = ["Provisioned", "bundles_dir", "ensure", "notes", "tools_dir"]

FINGERPRINT = f"1 {gvisor.PINNED} {node.PINNED}"
"""What was tried: a failure is remembered only for the same attempt."""

NOTHING_MISSING = "no system package is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned:
    """What the host has now."""

    bundle: Bundle
    runsc: Runsc | None
    runc: Path | None
    node: Path | None
    """The directory with tsx in its `node_modules`."""
    notes: Mapping[str, str]
    """What could not be had, by step, and why."""


def tools_dir(data_dir: Path) -> Path:
    """Where programs that k8e fetched or built live."""
    return data_dir / "tools"


def bundles_dir(data_dir: Path) -> Path:
    """Where agents' bundles live, one directory each."""
    return data_dir / "bundles"


def notes(data_dir: Path) -> dict[str, str]:
    """What the last attempt could not get; empty if it was another attempt or there was none."""
    try:
        kept = json.loads((tools_dir(data_dir) / "notes.json").read_text(encoding="utf-8"))
        return dict(kept["notes"]) if kept["fingerprint"] == FINGERPRINT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _keep_notes(tools: Path, found: Mapping[str, str]) -> None:
    text = json.dumps({"fingerprint": FINGERPRINT, "notes": dict(found)}, indent=2)
    (tools / "notes.json").write_text(text + "\n", encoding="utf-8")


@contextmanager
def _alone(tools: Path, report: Reporter) -> Iterator[None]:
    """One set-up at a time on a data directory; the lock goes with the process that holds it."""
    try:
        tools.mkdir(parents=True, exist_ok=True)
        file = private(tools / "lock")
    except OSError as error:
        raise HostUnsupported(f"cannot write {tools}: {error.strerror}; choose another with --data-dir") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report.say("another k8e is setting up this host; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _plan(tools: Path, needs: Sequence[Need]) -> str:
    """What set-up would do on this host, in words."""
    lines = [packages.advice(needs)] if needs else [NOTHING_MISSING]
    if gvisor.recorded(tools) is None:
        origins = ", ".join(name for name, _ in gvisor.ORIGINS)
        lines.append(f"gVisor is not set up; root would take the first of these that works: {origins}")
    if node.installed(tools) is None:
        lines.append(f"{node.PINNED} is not installed; npm would install it below {tools}")
    if lines == [NOTHING_MISSING]:
        return "everything that it needs is there"
    return "\n".join(lines)


def _require_root(tools: Path) -> None:
    """Raises: HostUnsupported, with everything that root would do."""
    if os.geteuid() == 0:
        return
    why = "the local server needs root: it mounts disks and makes namespaces"
    raise HostUnsupported(
        f"{why}\n{_plan(tools, packages.missing())}\nrun the same command as root and all of it is done"
    )


def _install_packages(report: Reporter, env: Mapping[str, str]) -> None:
    if required := tuple(need for need in packages.missing() if need.is_required):
        packages.install(required, report, env=env)


def _install_extras(tools: Path, report: Reporter, env: Mapping[str, str]) -> None:
    if lacking := packages.missing():
        packages.install(lacking, report, env=env)


def _acquire_gvisor(tools: Path, report: Reporter, env: Mapping[str, str]) -> None:
    gvisor.acquire(tools, report, env=env)


def _install_node(tools: Path, report: Reporter, env: Mapping[str, str]) -> None:
    node.install(tools, report, env=env)


Step = Callable[[Path, Reporter, Mapping[str, str]], None]

OPTIONAL: tuple[tuple[str, Step], ...] = (
    ("packages", _install_extras),
    ("gvisor", _acquire_gvisor),
    ("node", _install_node),
)


def _attempt(name: str, step: Step, tools: Path, report: Reporter, env: Mapping[str, str]) -> dict[str, str]:
    """Do one step that may fail; what it could not get, if anything."""
    try:
        step(tools, report, env)
    except HostUnsupported as error:
        report.say(f"{name}: not available; k8e goes on without it (k8e doctor shows why)")
        return {name: str(error)}
    return {}


def ensure(data_dir: Path, report: Reporter, *, env: Mapping[str, str], again: bool = False) -> Provisioned:
    """Bring the host to where sandboxes run; quick when it is there already. `again` retries what once failed.

    Raises: HostUnsupported, with what is missing and the command that installs it.
    """
    tools = tools_dir(data_dir)
    _require_root(tools)
    with _alone(tools, report):
        _install_packages(report, env)
        known = {} if again else notes(data_dir)
        found: dict[str, str] = {}
        for name, step in OPTIONAL:
            found |= {name: known[name]} if name in known else _attempt(name, step, tools, report, env)
        _keep_notes(tools, found)
        bundle = build(bundles_dir(data_dir))
    runc = find("runc") or find("crun")
    return Provisioned(
        bundle=bundle,
        runsc=gvisor.recorded(tools),
        runc=Path(runc) if runc else None,
        node=node.installed(tools),
        notes=found,
    )
