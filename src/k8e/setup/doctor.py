"""`k8e doctor`: what works on this host, what does not, and how to mend it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k8e.errors import HostUnsupported
from k8e.setup.checks import Check, Probe, probes
from k8e.setup.gvisor import TIMEOUT_S
from k8e.setup.provision import ensure
from k8e.setup.report import Reporter

__all__ = ["Diagnosis", "as_json", "as_text", "diagnose", "examine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    checks: tuple[Check, ...]
    fixed: tuple[str, ...] = ()
    """Names of checks that failed before `--fix` and pass now."""

    @property
    def problems(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.ok and not check.is_optional)

    @property
    def ok(self) -> bool:
        return not self.problems


def examine(data_dir: Path, more: Sequence[Probe] = ()) -> Diagnosis:
    """Run every probe; `more` are the caller's, such as the start of a real sandbox on each runtime."""
    return Diagnosis(checks=tuple(probe() for probe in (*probes(data_dir), *more)))


def diagnose(
    data_dir: Path,
    *,
    fix: bool,
    report: Reporter,
    env: Mapping[str, str],
    gvisor_timeout_s: float = TIMEOUT_S,
    gvisor_release: str = "",
    more: Sequence[Probe] = (),
) -> Diagnosis:
    """Examine the host; with `fix`, set up what is missing and examine it again."""
    before = examine(data_dir, more)
    if before.ok or not fix:
        return before
    try:
        ensure(
            data_dir,
            report,
            env=env,
            gvisor_timeout_s=gvisor_timeout_s,
            gvisor_release=gvisor_release,
            again=True,
        )
    except HostUnsupported as error:
        report.say(str(error))
    after = examine(data_dir, more)
    failed = {check.name for check in before.problems}
    return Diagnosis(checks=after.checks, fixed=tuple(c.name for c in after.checks if c.ok and c.name in failed))


def _entry(check: Check) -> dict[str, object]:
    plain: dict[str, object] = {"name": check.name, "ok": check.ok, "detail": check.detail, **check.facts}
    plain |= {"optional": True} if check.is_optional else {}
    return plain if check.ok or not check.fix else {**plain, "fix": check.fix}


def as_json(diagnosis: Diagnosis) -> str:
    """One line for programs."""
    return json.dumps({
        "ok": diagnosis.ok,
        "problems": len(diagnosis.problems),
        "fixed": len(diagnosis.fixed),
        "checks": [_entry(check) for check in diagnosis.checks],
    })  # fmt: skip


def _indented(text: str) -> str:
    return text.replace("\n", "\n      ")


def as_text(diagnosis: Diagnosis) -> str:
    """A few lines for people."""
    lines: list[str] = []
    for check in diagnosis.checks:
        mark = "ok " if check.ok else "-- " if check.is_optional else "NO "
        lines.append(f"{mark} {check.name}: {_indented(check.detail)}")
        if not check.ok and check.fix:
            lines.append(f"    → {_indented(check.fix)}")
    count = len(diagnosis.problems)
    summary = "everything works" if not count else f"{count} problem{'s' if count > 1 else ''}"
    lines.append(summary + (f", fixed: {', '.join(diagnosis.fixed)}" if diagnosis.fixed else ""))
    return "\n".join(lines)
