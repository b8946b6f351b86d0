"""How set-up talks while it works: one line for each step.

At a terminal the line of the current step is rewritten in place. Elsewhere it is written when the step begins and then
every half minute. A step that has nothing to do is told only if another step has.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Protocol, Self

from k8e import whole
from k8e.errors import HostUnsupported
from k8e.setup.programs import finish
from k8e.visible import LINES, terminal_safe

__all__ = ["STEPS", "Activity", "Reporter", "Silent", "Stderr", "Step", "Steps", "duration", "shared_activity", "title"]

STEPS = ("Python environment", "system packages", "gVisor", "TypeScript", "sandbox agent", "server")
"""What a first use does, in this order. The launcher does the first, `cli.daemon` the last, `provision` the others."""
REPEAT_S = 30.0
LOG_LINES = 15


def title(step: str) -> str:
    """How the line of a step begins: `[3/6] gVisor`."""
    return f"[{STEPS.index(step) + 1}/{len(STEPS)}] {step}"


def duration(seconds: float) -> str:
    """Short, because it stands in a line of a terminal: 40 s, 3 min, 2 min 40 s."""
    minutes, rest = divmod(round(seconds), 60)
    return " ".join([f"{minutes} min"] * bool(minutes) + [f"{rest} s"] * (bool(rest) or not minutes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What is being done now."""

    title: str
    """The step: `[3/6] gVisor`."""
    doing: str
    since: float
    """By the monotonic clock, which is the same one in every process."""
    usual_s: float = 0.0
    """About how long it takes; 0 if nobody knows."""
    most_s: float = 0.0
    """When it is given up; 0 if nobody needs to know."""

    def line(self, now: float) -> str:
        bounds = [f"about {duration(self.usual_s)}"] if self.usual_s else []
        bounds += [f"at most {duration(self.most_s)}"] if self.most_s else []
        spent = now - self.since
        parts = [", ".join(bounds)] if bounds else []
        parts += [f"{duration(spent)} so far"] if spent >= 1 else []
        return f"{self.title}: {self.doing}" + (f" ({'; '.join(parts)})" if parts else "")


def shared_activity(path: Path) -> Activity | None:
    """What another process wrote there of its set-up; None if there is nothing that can be read."""
    try:
        return Activity(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


class Reporter(Protocol):
    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def show(self, activity: Activity) -> None:
        """What is going on; called again and again while it does."""
        ...

    def clear(self) -> None:
        """Nothing goes on any more."""
        ...


class Stderr:
    """On standard error, so that standard output stays a program's."""

    def __init__(self) -> None:
        self._shown: Activity | None = None
        self._shown_at = 0.0
        self._line = ""
        self._is_rewritten = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"  # noqa: TID251 - of the terminal

    def say(self, text: str) -> None:
        self.clear()
        sys.stderr.write(f"k8e: {terminal_safe(text, keep=LINES)}\n")
        sys.stderr.flush()

    def show(self, activity: Activity) -> None:
        now = time.monotonic()
        if self._is_rewritten:
            self._rewrite(f"k8e: {activity.line(now)}")
        elif activity != self._shown or now - self._shown_at >= REPEAT_S:
            self.say(activity.line(now))
            self._shown_at = now
        self._shown = activity

    def clear(self) -> None:
        self._rewrite("")
        self._shown = None

    def _rewrite(self, line: str) -> None:
        if line != self._line:
            # One that is longer than the terminal is wide could not be taken back.
            fitting = terminal_safe(line)[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write(f"\r\x1b[K{fitting}")
            sys.stderr.flush()
        self._line = line


class Silent:
    """For callers that only want the result."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def show(self, activity: Activity) -> None:
        """Show nothing."""

    def clear(self) -> None:
        """There is nothing to clear."""


class Steps:
    """One set-up: its lines, its log, and what others who wait for it may show.

    `shared` goes away with the block, however it ends; only a process that was killed leaves it.
    """

    def __init__(self, report: Reporter, *, log: Path, shared: Path) -> None:
        self.report = report
        self.log_path = log
        self._shared = shared
        self._log: IO[bytes] | None = None
        self._untold: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.report.clear()
        self._shared.unlink(missing_ok=True)
        if self._log is not None:
            self._log.close()

    @property
    def has_worked(self) -> bool:
        """Whether any step had something to do."""
        return self._log is not None

    def step(self, name: str) -> Step:
        return Step(self, title(name))

    def begin(self, activity: Activity) -> None:
        """Show it here and to whoever waits; what was left untold is told first."""
        for line in self._untold:
            self.report.say(line)
        self._untold.clear()
        self.log().write(f"--- {activity.line(activity.since)}\n".encode())
        whole.replace(self._shared, json.dumps(asdict(activity)).encode(), mode=0o644)
        self.report.show(activity)

    def end(self, line: str, *, has_worked: bool) -> None:
        if has_worked or self.has_worked:
            self.report.say(line)
        else:
            self._untold.append(line)

    def log(self) -> IO[bytes]:
        """Of this set-up alone: the one before it is of no use any more."""
        if self._log is None:
            descriptor = os.open(self.log_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            self._log = os.fdopen(descriptor, "r+b", buffering=0)
        return self._log


class Step:
    """One step, as the code that does it sees it."""

    def __init__(self, steps: Steps, name: str) -> None:
        self._steps = steps
        self._title = name
        self._begun = 0.0
        self._activity: Activity | None = None

    @property
    def log_path(self) -> Path:
        return self._steps.log_path

    def doing(self, text: str, *, usual_s: float = 0.0, most_s: float = 0.0) -> None:
        """Say what is being done from now on."""
        now = time.monotonic()
        self._begun = self._begun or now
        self._activity = Activity(title=self._title, doing=text, since=now, usual_s=usual_s, most_s=most_s)
        self._steps.begin(self._activity)

    def say(self, text: str) -> None:
        """Something that is worth a line of its own."""
        self._steps.report.say(f"{self._title}: {text}")

    def end(self, text: str) -> None:
        """What came of it."""
        took = f" ({duration(time.monotonic() - self._begun)})" if self._begun else ""
        self._steps.end(f"{self._title}: {text}{took}", has_worked=bool(self._begun))
        self._activity = None

    def tick(self) -> None:
        """Keep its line current."""
        if self._activity is not None:
            self._steps.report.show(self._activity)

    def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, is_cuttable: bool = True
    ) -> str:
        """Run a program that must succeed and return its output. Raises: HostUnsupported with its last lines."""
        log = self._steps.log()
        log.write(f"$ {shlex.join(argv)}\n".encode())
        try:
            ended = finish(argv, timeout_s=timeout_s, env=env, log=log, tick=self.tick, is_cuttable=is_cuttable)
        except OSError as error:
            raise HostUnsupported(f"cannot start {argv[0]}: {error.strerror}") from error
        if ended.code == 0:
            return ended.output
        tail = "\n".join(ended.output.splitlines()[-LOG_LINES:])
        how = f"no end after {duration(timeout_s)}" if ended.code is None else f"exit code {ended.code}"
        raise HostUnsupported(f"{shlex.join(argv)}: {how}\n{tail}\n(all of it: {self.log_path})")
