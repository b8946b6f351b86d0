"""Set-up as a list of steps that each look first: run it as often as you like, whenever it was cut short.

Packages that every sandbox needs must be there; gVisor and Node may fail, and then the reason is kept, shown, and
not tried again at every start (`k8e doctor --fix` tries again). What would stop it later is looked for first. Two at
once share the work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from k8e.errors import HostUnsupported
from k8e.setup import early, gvisor, node, packages
from k8e.setup.bundle import Bundle, build
from k8e.setup.early import Space
from k8e.setup.gvisor import Runsc
from k8e.setup.packages import Need, find
from k8e.setup.report import Reporter, Step, Steps
from k8e.setup.turns import alone

__all__ = ["Provisioned", "bundles_dir", "check", "ensure", "notes", "tools_dir"]

FINGERPRINT = f"1 {gvisor.PINNED} {node.PINNED}"
"""What was tried: a failure is remembered only for the same attempt."""

NOTHING_MISSING = "no system package is missing"

DATA_BYTES = 10**9
"""What set-up and a first session take of the data directory's disk."""
BUILD_BYTES = 10**9
"""What Go keeps of a build of gVisor, in its own caches."""
AGENT_USUAL_S = 10.0
OTHER_DIRECTORY = "choose another directory with K8E_DATA_DIR or --data-dir"


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
    has_worked: bool = False
    """Whether anything had to be done for it just now."""


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


def check(
    data_dir: Path,
    *,
    addresses: Iterable[tuple[str, int]] = (),
    env: Mapping[str, str],
    also: Sequence[Space] = (),
) -> None:
    """Find what would stop set-up, or a server on these addresses, before anything is done.

    `also` is what the caller will write. Raises: HostUnsupported, Conflict, with the fix.
    """
    tools = tools_dir(data_dir)
    _require_root(tools)
    early.require_kernel()
    early.require_writable(tools, OTHER_DIRECTORY)
    early.require_space([*also, *_space(data_dir, env)])
    early.require_free(addresses)


def _space(data_dir: Path, env: Mapping[str, str]) -> Iterator[Space]:
    """How much set-up will write, and where; nothing once gVisor is there, or is known not to be."""
    if gvisor.recorded(tools_dir(data_dir)) or "gvisor" in notes(data_dir):
        return
    yield Space(path=data_dir, size=DATA_BYTES, moved_by="K8E_DATA_DIR")
    if gvisor.will_be_built():
        caches = Path(env.get("GOCACHE") or env.get("HOME") or data_dir)
        yield Space(path=caches, size=BUILD_BYTES, moved_by="GOCACHE")


@contextmanager
def _steps(tools: Path, report: Reporter) -> Iterator[Steps]:
    """The steps of this data directory's set-up, done by nobody else at the same time."""
    shared = tools / "setup.json"
    with ExitStack() as stack:
        try:
            tools.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(tools / "lock", shared, report))
        except OSError as error:
            raise HostUnsupported(f"cannot write {tools}: {error.strerror}; {OTHER_DIRECTORY}") from error
        yield stack.enter_context(Steps(report, log=tools / "setup.log", shared=shared))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step is done with."""

    tools: Path
    env: Mapping[str, str]
    gvisor_timeout_s: float
    gvisor_release: str


def _install_required(work: Work, step: Step) -> None:
    if required := tuple(need for need in packages.missing() if need.is_required):
        packages.install(required, step, env=work.env)


def _install_extras(work: Work, step: Step) -> None:
    if lacking := packages.missing():
        packages.install(lacking, step, env=work.env)
    step.end("all there")


def _acquire_gvisor(work: Work, step: Step) -> None:
    gvisor.acquire(work.tools, step, env=work.env, timeout_s=work.gvisor_timeout_s, release=work.gvisor_release)


def _install_node(work: Work, step: Step) -> None:
    node.install(work.tools, step, env=work.env)


OPTIONAL: tuple[tuple[str, str, Callable[[Work, Step], None]], ...] = (
    ("packages", "system packages", _install_extras),
    ("gvisor", "gVisor", _acquire_gvisor),
    ("node", "TypeScript", _install_node),
)
"""Name in the notes, name of the step, what does it."""


def _attempt(name: str, do: Callable[[Work, Step], None], work: Work, step: Step) -> dict[str, str]:
    """Do one step that may fail; what it could not get, if anything."""
    try:
        do(work, step)
    except HostUnsupported as error:
        step.end(f"not available; k8e goes on without it (`k8e doctor` says why; log: {step.log_path})")
        return {name: str(error)}
    return {}


def _do_all(work: Work, steps: Steps, known: Mapping[str, str]) -> dict[str, str]:
    """Every step but the agent's; what could not be had."""
    _install_required(work, steps.step("system packages"))
    found: dict[str, str] = {}
    for name, title, do in OPTIONAL:
        step = steps.step(title)
        if name in known:
            step.end("not available when it was last tried (`k8e doctor` says why)")
            found[name] = known[name]
        else:
            found |= _attempt(name, do, work, step)
    return found


def _build_bundle(data_dir: Path, step: Step) -> Bundle:
    bundle = build(
        bundles_dir(data_dir), before=partial(step.doing, "copying this host's Python", usual_s=AGENT_USUAL_S)
    )
    step.end("its Python is there")
    return bundle


def ensure(
    data_dir: Path,
    report: Reporter,
    *,
    env: Mapping[str, str],
    addresses: Iterable[tuple[str, int]] = (),
    gvisor_timeout_s: float = gvisor.TIMEOUT_S,
    gvisor_release: str = "",
    again: bool = False,
) -> Provisioned:
    """Bring the host to where sandboxes run; quick when it is there already. `again` retries what once failed.

    `addresses` are those that a server will listen on. Raises: HostUnsupported, with what is missing and the command
    that installs it; Conflict, when a server could not listen.
    """
    check(data_dir, addresses=addresses, env=env)
    tools = tools_dir(data_dir)
    with _steps(tools, report) as steps:
        work = Work(tools=tools, env=env, gvisor_timeout_s=gvisor_timeout_s, gvisor_release=gvisor_release)
        found = _do_all(work, steps, {} if again else notes(data_dir))
        _keep_notes(tools, found)
        bundle = _build_bundle(data_dir, steps.step("sandbox agent"))
        has_worked = steps.has_worked
    runc = find("runc") or find("crun")
    return Provisioned(
        bundle=bundle,
        runsc=gvisor.recorded(tools),
        runc=Path(runc) if runc else None,
        node=node.installed(tools),
        notes=found,
        has_worked=has_worked,
    )
