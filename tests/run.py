"""What `make test` runs: `python -m tests.run [--jobs N] [PATH …] [-- PYTEST OPTIONS]`.

Tests run in several processes side by side, those marked `alone` after them in one. A test that failed is run once
more, by itself. If it passes then, it is flaky: it is named, and the run is green as long as there are few of them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from tests.support.places import IMAGES_VARIABLE, RUN_DIR_VARIABLE, TOOLS_DIR
from tests.support.results import ALONE, PLUGIN, TOGETHER, Result, read

__all__ = ["FLAKY_ALLOWED", "Summary", "main", "shown", "summed_up"]

JOBS: Final = 4
FLAKY_ALLOWED: Final = 2
RETRIED_AT_MOST: Final = 10
"""Where more than these fail, something is broken, and running all of them once more only takes time."""
SLOWEST: Final = 10
_SHOWN_LINES: Final = 40

_MEMORY_NEEDED: Final = 16 * 2**30
"""The file system in memory may take half of it; a whole run needs less."""

_REMOVAL_S: Final = 120.0
_REMOVING_SERVER: Final = {
    "K8E_SANDBOX_TOOLS_DIR": str(TOOLS_DIR),
    "K8E_SANDBOX_LISTEN": "127.0.0.1:0",
    "K8E_SANDBOX_METRICS_LISTEN": "off",
    "K8E_SANDBOX_POOL_MIN": "0",
    "K8E_SANDBOX_POOL_MAX": "0",
}
"""Settings of the server that is started to remove what a killed one left."""

_OK, _FAILED, _INTERRUPTED, _NONE_FOUND = 0, 1, 2, 5
"""Exit codes of pytest; all others mean that it was interrupted or could not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a whole run came to."""

    results: Sequence[Result]
    """Of the first attempt."""
    flaky: Sequence[Result]
    """First failures of tests that passed by themselves."""
    failed: Sequence[Result]

    @property
    def exit_code(self) -> int:
        return _FAILED if self.failed or len(self.flaky) > FLAKY_ALLOWED or not self.results else _OK


def summed_up(first: Sequence[Result], again: Iterable[Result]) -> Summary:
    """`again` has the second attempts, by themselves, of what failed at first."""
    healed = {result.test for result in again if result.outcome == "passed"}
    failures = _failures(first)
    flaky = [result for result in failures if result.test in healed and not result.is_final]
    return Summary(results=first, flaky=flaky, failed=[result for result in failures if result not in flaky])


def shown(summary: Summary) -> str:
    """For a person: what took long, what was left out, and what failed; the counts come last."""
    counts = Counter(result.outcome for result in summary.results)
    slowest = sorted(summary.results, key=lambda result: -result.seconds)[:SLOWEST]
    parts = [
        _section("slowest tests", [f"{result.seconds:7.1f} s  {result.test}" for result in slowest]),
        _section("time per folder, summed over all processes", _folders(summary.results)),
        _section("LEFT OUT", _left_out(summary.results)),
        _section("FLAKY: failed at first, passed alone", [_failure(result) for result in summary.flaky]),
        _section("FAILED", [_failure(result) for result in summary.failed]),
    ]
    if len(summary.flaky) > FLAKY_ALLOWED:
        parts.append(f"\n{len(summary.flaky)} flaky tests; more than {FLAKY_ALLOWED} make a run fail\n")
    passed = counts["passed"] + len(summary.flaky)
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    return "".join(parts) + f"\n{passed} passed, {len(summary.failed)} failed{skipped}\n"


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join(["", f"== {title}", *lines, ""]) if lines else ""


def _folders(results: Iterable[Result]) -> list[str]:
    seconds: dict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for result in results:
        folder = str(PurePosixPath(result.test.partition("::")[0]).parent)
        seconds[folder] += result.seconds
        tests[folder] += 1
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return [f"{spent:7.1f} s  {tests[folder]:5} tests  {folder}" for folder, spent in ordered]


def _left_out(results: Iterable[Result]) -> list[str]:
    reasons = Counter(result.text for result in results if result.outcome == "skipped")
    return [f"{count:5} tests: {reason}" for reason, count in reasons.most_common()]


def _failure(result: Result) -> str:
    last = result.text.splitlines()[-_SHOWN_LINES:]
    return "\n".join([result.test, *(f"    {line}" for line in last)])


class _Unfinished(Exception):
    """pytest was stopped or could not run; it has said why."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


_interrupted = threading.Event()
"""Somebody has pressed Control-C."""


def _pytest(results: Path, *argv: str) -> None:
    """Raises: _Unfinished."""
    if _interrupted.is_set():
        raise _Unfinished(_INTERRUPTED)
    known = _failures(read(results))
    ours = ("-p", PLUGIN, "-m", "not soak", "--results", str(results), "--basetemp", str(results.with_suffix(".tmp")))
    code = subprocess.run([sys.executable, "-m", "pytest", *ours, *argv], check=False).returncode
    # A failure that no test has is one of pytest itself, or of a worker that found other tests than the rest.
    if code not in (_OK, _FAILED, _NONE_FOUND) or (code == _FAILED and _failures(read(results)) == known):
        raise _Unfinished(code)


def _failures(results: Iterable[Result]) -> list[Result]:
    return [result for result in results if result.outcome == "failed"]


def _attempt(results: Path, paths: Sequence[str], options: Sequence[str], jobs: int) -> list[Result]:
    """Every test once."""
    beside = ("-n", str(jobs), "--dist", "worksteal") if jobs > 1 else ()
    print(f"== tests side by side, {jobs} processes", flush=True)
    _pytest(results, "--part", TOGETHER, *beside, *options, *paths)
    print("== tests that need the machine to themselves", flush=True)
    _pytest(results, "--part", ALONE, *options, *paths)
    return read(results)


def _again(results: Path, failed: Sequence[Result], options: Sequence[str]) -> list[Result]:
    """Each of these once more, in a process of its own."""
    if not failed or len(failed) > RETRIED_AT_MOST:
        return []
    print(f"== once more, one by one: {len(failed)} failed", flush=True)
    for result in failed:
        _pytest(results, *options, result.test)
    return read(results)


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """For everything that the run writes, on a file system in memory where root has enough of it.

    Tests make and remove many thousands of files, which slows some file systems down, ext4 without a journal by a
    fifth of the whole run.
    """
    with tempfile.TemporaryDirectory(prefix="k8e-", dir="/tmp") as name, contextlib.ExitStack() as stack:
        if os.geteuid() == 0 and _available_bytes() >= _MEMORY_NEEDED:
            options = f"size={_MEMORY_NEEDED // 2}"
            if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "k8e-tests", name], check=False).returncode == 0:
                stack.callback(subprocess.run, ["umount", "--lazy", name], check=False)
        stack.callback(_remove_sandboxes, Path(name))
        # Sandboxes run as nobody in particular: their paths must be passable, though not listable, for others.
        Path(name).chmod(0o711)
        yield Path(name)


def _remove_sandboxes(directory: Path) -> None:
    """What interrupted or killed test processes left: as an operator would, one data directory after the other."""
    for data_dir in sorted(
        {path.parent for depth in ("*", "*/*") for path in directory.glob(f"t-*/{depth}/sandboxes")}
    ):
        if not any((data_dir / "sandboxes").iterdir()):
            continue
        print(f"== removing the sandboxes of {data_dir}", flush=True)
        argv = [sys.executable, "-m", "k8e", "server", "stop", "--destroy", "--data-dir", str(data_dir)]
        try:
            subprocess.run(argv, env=os.environ | _REMOVING_SERVER, check=False, timeout=_REMOVAL_S)
        except subprocess.TimeoutExpired as error:
            print(f"== not removed: {error}", flush=True)


def _available_bytes() -> int:
    table = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return int(table["MemAvailable"].split()[0]) * 1024


def _set_up(directory: Path, paths: Sequence[str]) -> None:
    """Once and visibly, before several processes need it; without root there are no sandboxes to set up for."""
    # Each process would compile all tests anew, and every program of ours that they start all of its modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with _compiled(paths):
        if os.geteuid() != 0:
            return
        print("== setting up the host and an image for sandboxes", flush=True)
        prepared = subprocess.run([sys.executable, "-m", "tests.support.prepared_images", str(directory)], check=False)
        if prepared.returncode == 0:
            os.environ[IMAGES_VARIABLE] = str(directory / "images")


@contextlib.contextmanager
def _compiled(paths: Sequence[str]) -> Iterator[None]:
    """By the end of the block the tests are compiled; what is wrong with them is told by those who run them."""
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", *paths]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        yield


def main(argv: Sequence[str]) -> int:
    ours, options = _split(argv)
    parser = argparse.ArgumentParser(prog="tests.run", description="Run the tests as `make test` does.")
    parser.add_argument("--jobs", type=int, default=JOBS, help="how many processes (default: %(default)s)")
    parser.add_argument("paths", nargs="*", default=["tests"])
    parser.add_argument("--no-set-up", action="store_true", help="everything that the tests need is there")
    asked = parser.parse_args(ours)
    # Control-C goes to pytest as well. We wait for its end, and remove what its workers left.
    signal.signal(signal.SIGINT, lambda *_: _interrupted.set())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with _directory() as directory:
        os.environ[RUN_DIR_VARIABLE] = str(directory)
        if not asked.no_set_up:
            _set_up(directory, asked.paths)
        first = directory / "first"
        try:
            results = _attempt(first, asked.paths, options, asked.jobs)
            failed = [result for result in _failures(results) if not result.is_final]
            summary = summed_up(results, _again(directory / "again", failed, options))
        except _Unfinished as stopped:
            print(shown(summed_up(read(first), [])), end="")
            print(
                f"NOT FINISHED: pytest ended with exit code {stopped.code}, and the tests after that did not run",
                flush=True,
            )
            return stopped.code
        print(shown(summary), end="", flush=True)
    return summary.exit_code


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Before and after `--`: pytest's own options may have values that look like paths."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
